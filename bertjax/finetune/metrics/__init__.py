"""Metrics of predictions, as each benchmark defines them."""
