"""The prose of the documentation inside the installed Python packages."""

from __future__ import annotations

from collections.abc import Iterator


def units(packages: str) -> list[tuple[str, tuple[str, ...]]]:
    """(name, module files) of every unit of the packages named, comma-separated; all installed ones when empty."""
    raise NotImplementedError


def read(members: tuple[str, ...]) -> Iterator[str | None]:
    """Paragraphs of the modules' docstrings; None ends a document."""
    raise NotImplementedError
