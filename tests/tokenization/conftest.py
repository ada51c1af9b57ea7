"""Fixtures of this room."""

from multilingual_text import sentences  # noqa: F401
