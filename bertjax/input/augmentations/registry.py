"""Registry of augmentations, and their composition for a config."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.config.registry import Registry
from bertjax.input.augmentations import randomised_smiles, reverse_complement
from bertjax.input.augmentations.augmentation import Augmentation, Change, Texts
from bertjax.storage.lean_import import choose_members
from bertjax.tokenization.tokenizer import Tokenizer

_ALL = (reverse_complement.AUGMENTATION, randomised_smiles.AUGMENTATION)
AUGMENTATIONS = Registry("augmentations", {augmentation.name: augmentation for augmentation in _ALL}, Augmentation)


def choose(names: Sequence[str]) -> list[Augmentation]:
    """Look up `data.augment`. Raises ValueError for an unknown name, and for a missing library."""
    return choose_members(AUGMENTATIONS, names, "data.augment")


def slack_tokens(names: Sequence[str], lengths: np.ndarray, most: int) -> np.ndarray:
    """Tokens to reserve for texts of these lengths after augmentation, int64 [n], at most `most`."""
    room = lengths.astype(np.int64)
    for augmentation in choose(names):
        room = room + augmentation.slack(room)
    return np.minimum(room, most)


def prepare(names: Sequence[str], tokenizer: Tokenizer) -> Change:
    """Compose the augmentations in order. Raises ValueError as each of them does."""
    changes = [augmentation.prepare(tokenizer) for augmentation in choose(names)]

    def change(keys: np.ndarray, room: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> Texts:
        for step in changes:
            tokens, lengths = step(keys, room, tokens, lengths)
        return tokens, lengths

    return change
