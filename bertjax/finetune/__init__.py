"""Tasks: their data, their training, their predictions and metrics."""
