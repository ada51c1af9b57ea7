"""Fixtures for tests of tokenizers."""

from multilingual_text import sentences  # noqa: F401
