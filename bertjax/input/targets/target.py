"""The interface of an objective's NumPy half, which adds arrays to a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Text, TextView, Vocabulary
from bertjax.input.packing import BatchArray


@dataclass(frozen=True)
class Sequences:
    """N sequences, each in its own row: a sentence pair or running text, before masking."""

    encoder: Mapping[str, np.ndarray]  # input_ids, token_type_ids, sequence_ids; int32 [N, L]
    text: Text
    keys: np.ndarray  # uint64 [N]: all draws depend on them
    pair_labels: np.ndarray  # bool [N]: label 1 of the pair objective
    arrays: Mapping[str, np.ndarray]  # `encoder`, and the arrays of objectives before this one in the registry


@dataclass(frozen=True)
class Pairing:
    """How to form sentence pairs. A chunk of one sentence always gets a random B, from another document."""

    random_b: bool = True  # half of the chunks of several sentences get a random B too
    exchanges: bool = False  # swap A and B in half of the pairs whose B follows A
    has_labels: bool = True  # the objective classifies pairs, so rows must be pairs
    names: tuple[str, str] = ("IsNext", "NotNext")  # display names of labels 0 and 1


Make = Callable[[Sequences], dict[str, np.ndarray]]
FromRecords = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class Target(ABC):
    """The NumPy half of an objective. At most one objective of a run has a `pairing`."""

    pairing: Pairing | None = None  # how to form pairs for this objective; None if it does not use them
    from_records: FromRecords | None = None
    """Converts features of google-research/bert's records to the objective's arrays; None if they do not suffice."""

    @abstractmethod
    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        """The arrays that the objective adds to a batch, by name.

        Raises ValueError for options of `data` that it does not support.
        """

    @abstractmethod
    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        """Return a thread-safe function that makes these arrays, [N, n] each, before packing.

        n is the row's length for an array per token, 1 for one per sequence, and the width of the array `used` for one
        per prediction. The function may also return `input_ids`, which replace the encoder's. `split` is the text of
        these rows: the held-out text in evaluations. Raises ValueError like `keys`, and for an unsuitable vocabulary or
        split.
        """


def make_declared(name: str, keys: Mapping[str, BatchArray], make: Make, rows: Sequences) -> dict[str, np.ndarray]:
    """Make the arrays of the target `name`. Raises ValueError if they differ from its `keys`."""
    own = make(rows)
    arrays = {**rows.arrays, **own}
    count, length = rows.encoder["input_ids"].shape
    for key, declared in keys.items():
        if key not in own:
            raise ValueError(
                f"target {name}: `prepare` makes no {key!r}, which `keys` declares; return it, or remove it"
            )
        if declared.used:
            width = arrays[declared.used].shape[1]
        else:
            width = {"token": length, "sequence": 1}.get(declared.per, own[key].shape[-1])
        expected, actual = (np.dtype(declared.dtype), (count, width)), (own[key].dtype, own[key].shape)
        if expected != actual:
            raise ValueError(
                f"target {name}: {key!r} is {actual[0]} {[*actual[1]]}, but `keys` declares {expected[0]} "
                f"{[*expected[1]]}; convert it, or correct `keys`"
            )
    return own
