"""The interface of a filter, which leaves documents out of a token store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Signature(Protocol):
    """Summarises one document, whose parts are added in order."""

    def add(self, text: str) -> None:
        """Add the next part of the document."""
        ...

    def values(self) -> np.ndarray:
        """uint64 [columns]. Documents with the same value in a column are copies; 0 equals nothing."""
        ...


@dataclass(frozen=True)
class Filter:
    """Leaves documents out. To add one, write such an object in its own file and a line in the registry.

    A filter judges each document by itself (`broken_rule`) or compares it with all others (`signature`).
    """

    name: str
    reasons: tuple[str, ...]  # for leaving a document out, as listed in the table of counts
    broken_rule: Callable[[str], str] | None = None
    """Return the one of `reasons` why a document with this text is left out; '' to retain it. Judges only the first
    `DOCUMENT_CAP` characters of a document."""
    signature: Callable[[], Signature] | None = None
    """Return an empty signature. A document is left out, for the first of `reasons`, if it is a copy of an earlier one
    that the preceding filters retain."""
    columns: int = 0  # of a signature
    for_prose: bool = False  # whether its rules suit only prose, not sequences of letters
    version: int = 1  # a change makes new stores
    needs: tuple[str, str] | None = None  # the optional module that it imports, and the argument for pip

    def __post_init__(self) -> None:
        if isinstance(self.reasons, str) or not self.reasons:
            raise ValueError(f"filter {self.name!r}: reasons={self.reasons!r}; give a tuple of one reason or more")
        if (self.broken_rule is None) == (self.signature is None):
            raise ValueError(f"filter {self.name!r}: give it `broken_rule` or `signature`, and not both")
