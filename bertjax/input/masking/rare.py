"""Rare tokens are hidden more often: draws in proportion to count**-power (DistilBERT, `data.mask_power`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from bertjax.input.layout import Split
from bertjax.input.randomness import hash64, uniform

if TYPE_CHECKING:
    from bertjax.input.tfrecords.rows import Segments

_SENTENCES_AT_A_TIME = 1 << 17


def token_counts(text: Split | Segments, vocab_size: int) -> np.ndarray:
    """How often each token occurs in a text: int64 [vocab_size]. Reads all of it."""
    return reduce(np.add, _counts_of_parts(text, vocab_size))


def _counts_of_parts(text: Split | Segments, vocab_size: int) -> Iterator[np.ndarray]:
    offsets = text.sentence_offsets
    for first in range(0, len(offsets) - 1, _SENTENCES_AT_A_TIME):
        edges = offsets[first : first + _SENTENCES_AT_A_TIME + 1]
        yield np.bincount(text.tokens(edges[:-1], np.diff(edges)), minlength=vocab_size)


def token_weights(text: Split | Segments, vocab_size: int, power: float) -> np.ndarray:
    """max(count, 1)**-power of each token in a text: float64 [vocab_size].

    Rule: huggingface/transformers, examples of distillation, train.py (`--mlm_smoothing`).
    """
    return np.maximum(token_counts(text, vocab_size), 1.0) ** -power


def draw_by_weight(
    candidates: np.ndarray, weights: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
) -> np.ndarray:
    """Columns drawn without replacement, each time in proportion to the weights of those that are left.

    `weights` float64 [B, L], above 0; the rest is as in `Unit.choose`. A draw takes the largest u**(1 / weight), u
    uniform in (0, 1) (Efraimidis and Spirakis 2006), so the smallest -log(u) / weight.
    """
    length = candidates.shape[1]
    u = uniform(hash64(keys[:, None], np.arange(length))) + 2.0**-54
    order = np.argsort(np.where(candidates, -np.log(u) / weights, np.inf), axis=1, kind="stable")
    positions = np.full((len(order), slots), length, np.int64)
    kept = min(slots, length)
    positions[:, :kept] = order[:, :kept]
    positions[np.arange(slots) >= counts[:, None]] = length
    positions.sort(axis=1)
    return positions
