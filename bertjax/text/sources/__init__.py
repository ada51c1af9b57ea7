"""Readers of text, one file per kind of source, and their registry."""
