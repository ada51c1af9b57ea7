"""The interface of augmentations, which draw another spelling of a record in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertjax.tokenization.tokenizer import Tokenizer

Texts = tuple[np.ndarray, np.ndarray]  # concatenated tokens of n texts, and their lengths, int64 [n]
Change = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Texts]
"""(keys, room, tokens, lengths) -> tokens and lengths. All draws depend on `keys`, uint64 [n]. A text may grow to its
`room` in tokens, int64 [n], which is at least its length."""


@dataclass(frozen=True)
class Augmentation:
    """Changes the texts of records. To add one, define such an object in its own file and list it in the registry."""

    name: str
    prepare: Callable[[Tokenizer], Change]
    """Return a thread-safe function. Raises ValueError for an unsuitable vocabulary."""
    slack: Callable[[np.ndarray], np.ndarray] = np.zeros_like  # lengths of texts -> tokens that a change may add
    needs: tuple[str, str] | None = None  # required module, and what to pass to pip to install it
