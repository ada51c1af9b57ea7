"""Fixtures of this room."""

from small_corpus import data  # noqa: F401
