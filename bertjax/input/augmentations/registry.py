"""The augmentations by name, and those of a config as one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np

from bertjax.config.registry import Registry
from bertjax.input.augmentations import randomised_smiles, reverse_complement
from bertjax.input.augmentations.augmentation import Augmentation, Change, Texts
from bertjax.storage.lean_import import require_package
from bertjax.tokenization.tokenizer import Tokenizer

_ALL = (reverse_complement.AUGMENTATION, randomised_smiles.AUGMENTATION)
AUGMENTATIONS = Registry("augmentations", {augmentation.name: augmentation for augmentation in _ALL}, Augmentation)


def choose(names: Sequence[str]) -> list[Augmentation]:
    """The augmentations of `data.augment`. Raises ValueError for an unknown name, and for a missing library."""
    for name in names:
        if name not in AUGMENTATIONS:
            near = difflib.get_close_matches(name, AUGMENTATIONS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(AUGMENTATIONS)}"
            raise ValueError(f"data.augment={tuple(names)}: {name!r} is unknown; {hint}")
    chosen = [AUGMENTATIONS[name] for name in names]
    for one in chosen:
        if one.needs:
            try:
                require_package(*one.needs, f"data.augment={one.name!r}")
            except ModuleNotFoundError as error:
                raise ValueError(str(error)) from None
    return chosen


def slack_tokens(names: Sequence[str], lengths: np.ndarray, most: int) -> np.ndarray:
    """The tokens to keep free for texts of these lengths, int64 [n], at most `most`."""
    room = lengths.astype(np.int64)
    for augmentation in choose(names):
        room = room + augmentation.slack(room)
    return np.minimum(room, most)


def prepare(names: Sequence[str], tokenizer: Tokenizer) -> Change:
    """The augmentations in order as one. Raises ValueError as each of them does."""
    changes = [augmentation.prepare(tokenizer) for augmentation in choose(names)]

    def change(keys: np.ndarray, room: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> Texts:
        for step in changes:
            tokens, lengths = step(keys, room, tokens, lengths)
        return tokens, lengths

    return change
