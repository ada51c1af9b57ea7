"""Folders that sentence-transformers loads: the encoder and its pooling."""
