"""Conversion of arguments of the Python API."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def strings(value: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """Convert one or several texts, files or columns to a tuple; a single string is one item."""
    return (str(value),) if isinstance(value, str | Path) else tuple(map(str, value))
