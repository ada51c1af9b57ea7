"""Read a split of a token store front to back, whole documents at a time, in bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertjax.text.store.format import SplitView

STRETCH_TOKENS = 1 << 18  # fits a processor's cache, and hides the cost of NumPy's calls


@dataclass(frozen=True)
class Stretch:
    """Successive documents of a split, concatenated."""

    documents: np.ndarray  # int64 [n]: their numbers in the split, ascending
    lengths: np.ndarray  # int64 [n]: tokens of each
    ids: np.ndarray  # uint16 or uint32 [tokens]


def stretches(split: SplitView, documents: np.ndarray | None = None, tokens: int = STRETCH_TOKENS) -> Iterator[Stretch]:
    """Yield documents by number, int64 [n] ascending (None: all), about `tokens` tokens at a time.

    A stretch holds at least one document, and at most one more than fits.
    """
    if documents is None:
        documents = np.arange(split.num_documents)
    starts, lengths = token_ranges(split, documents)
    part = (np.cumsum(lengths) - lengths) // tokens
    edges = np.flatnonzero(np.diff(part, prepend=-1, append=-1))
    for first, last in itertools.pairwise(edges.tolist()):
        here = slice(first, last)
        yield Stretch(documents[here], lengths[here], split.tokens(starts[here], lengths[here]))


def token_ranges(split: SplitView, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first token and the number of tokens of each document, both int64 [n]."""
    sentences, offsets = split.sentence_offsets, split.document_offsets
    starts = sentences[offsets[documents]]
    return starts, sentences[offsets[documents + 1]] - starts
