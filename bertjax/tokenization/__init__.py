"""Tokenizers, and their training."""
