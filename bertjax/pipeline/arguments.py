"""Arguments of the functions of `bertjax`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def strings(value: str | Path | Iterable[str | Path]) -> tuple[str, ...]:
    """A text, file or column, or several, as a tuple: one alone is not taken as its characters."""
    return (str(value),) if isinstance(value, str | Path) else tuple(map(str, value))
