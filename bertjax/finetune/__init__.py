"""Tasks: their data, their kinds, their training, their predictions and metrics."""
