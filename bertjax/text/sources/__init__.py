"""Readers of text: one file per kind of source, and the registry that names them."""
