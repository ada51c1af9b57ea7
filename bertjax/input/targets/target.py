"""The interface of the NumPy half of an objective: the arrays that it adds to a batch, and how it makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Text, Vocabulary
from bertjax.input.packing import BatchKey


@dataclass(frozen=True)
class Sequences:
    """N sequences, each in its own row: a sentence pair, or running text. No token is masked yet."""

    encoder: Mapping[str, np.ndarray]  # input_ids, token_type_ids, sequence_ids; int32 [N, L]
    text: Text
    keys: np.ndarray  # uint64 [N]: all draws depend on them
    pair_labels: np.ndarray  # bool [N]: B does not follow A, in the meaning of the pair objective
    made: Mapping[str, np.ndarray]  # arrays of the objectives that precede this one in the registry


@dataclass(frozen=True)
class Pairing:
    """How sentence pairs are made of text. A chunk of one sentence always gets a random B, from another document."""

    random_b: bool = True  # half of the chunks of several sentences get one too
    exchanges: bool = False  # in half of the pairs whose B follows A, the two are swapped
    has_labels: bool = True  # the objective classifies pairs, so that rows must be pairs
    names: tuple[str, str] = ("IsNext", "NotNext")  # of labels 0 and 1, for people


Make = Callable[[Sequences], dict[str, np.ndarray]]
OfRecords = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


class Target(Protocol):
    """The NumPy half of an objective. At most one objective of a run has a `pairing`."""

    @property
    def pairing(self) -> Pairing | None:
        """How an objective about pairs wants them made; None for other objectives."""
        ...

    @property
    def of_records(self) -> OfRecords | None:
        """Its arrays from the features of google-research/bert's records; None if they have none for it."""
        ...

    def keys(self, data: DataConfig) -> dict[str, BatchKey]:
        """The arrays that it adds to a batch of rows of `data`, by name.

        Raises ValueError for options of `data` that it cannot serve.
        """
        ...

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: Split) -> Make:
        """The function that makes these arrays of sequences, [N, n] each, before packing.

        It may return other `input_ids` too, which the encoder then sees; it is called from many threads. Raises
        ValueError as `keys` does, and for what the vocabulary or the split cannot serve.
        """
        ...
