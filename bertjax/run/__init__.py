"""A run: the script, the loop, its hooks, checkpoints and logs."""
