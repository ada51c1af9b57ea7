"""The interface of an augmentation: another spelling of a record, drawn in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertjax.tokenization.tokenizer import Tokenizer

Texts = tuple[np.ndarray, np.ndarray]  # the concatenated tokens of some texts, and the tokens of each, int64 [n]
Change = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Texts]
"""(keys, room, tokens, lengths) -> tokens and lengths. All draws depend on `keys`, uint64 [n]. A text takes at most
`room` tokens, int64 [n], which are at least its length."""


@dataclass(frozen=True)
class Augmentation:
    """Changes texts of records. To add one, write such an object in its own file and a line in the registry."""

    name: str
    prepare: Callable[[Tokenizer], Change]
    """Return a thread-safe function. Raises ValueError for an unsuitable vocabulary."""
    slack: Callable[[np.ndarray], np.ndarray] = np.zeros_like  # tokens that a change may add to texts of these lengths
    needs: tuple[str, str] | None = None  # a module that it imports, and the argument for pip
