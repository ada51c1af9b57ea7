"""BERT pretraining in JAX: from raw text to a checkpoint that other frameworks load."""

__version__ = "0.1.0"
