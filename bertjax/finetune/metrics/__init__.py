"""Metrics of predictions, by the rules of each benchmark."""
