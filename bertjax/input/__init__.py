"""From token store to batches: which text goes in which row, its masks, and the feed. Imports no jax."""
