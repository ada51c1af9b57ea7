"""Tokenizers of every kind, and their training."""
