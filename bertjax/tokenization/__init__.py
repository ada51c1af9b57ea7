"""Tokenizers of every kind, and how each is trained."""
