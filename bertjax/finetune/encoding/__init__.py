"""Encode examples as rows of tokens, and decode answers from a network's outputs."""
