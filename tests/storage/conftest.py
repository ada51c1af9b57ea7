"""Fixtures for these tests."""

from small_corpus import data  # noqa: F401
