"""Mixtures: which documents an epoch reads, and how often, so that each source has its share of the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.input.randomness import derive_key, hash64


@dataclass(frozen=True)
class Reading:
    """The documents of an epoch; a document may be read several times, each time as another copy."""

    document: np.ndarray  # int64 [n]: its number in the split
    copy: np.ndarray  # int64 [n]: 0 for the first time that the run reads it, and so on

    def __len__(self) -> int:
        return len(self.document)


def every_document(documents: int) -> Reading:
    """Each of them once."""
    return Reading(np.arange(documents), np.zeros(documents, np.int64))


def token_shares(tokens: Sequence[int], weights: Sequence[float], temperature: float) -> np.ndarray:
    """Each source's share of the tokens of an epoch, float64 [sources], from the tokens that it has.

    In proportion to `weights`, one for each source; without any, to tokens ** temperature (multilingual BERT smooths
    with 0.7). Raises ValueError for a weight of a source without documents.
    """
    assert not weights or len(weights) == len(tokens), "the config was validated"
    sizes = np.asarray(tokens, np.float64)
    wanted = np.asarray(weights, np.float64) if weights else np.where(sizes > 0, sizes**temperature, 0)
    empty = np.flatnonzero((sizes == 0) & (wanted > 0)).tolist()
    if empty:
        raise ValueError(
            f"data.weights={tuple(weights)}: source {empty[0]} has no training documents to have a share; give it 0"
        )
    return wanted / wanted.sum()


def mixed(edges: np.ndarray, tokens_of: np.ndarray, shares: np.ndarray, seed: int, epoch: int) -> Reading:
    """The documents of one epoch, in which each source has its share of the tokens to within one document.

    The documents of source n are [edges[n], edges[n + 1]), int64 [sources + 1]; `tokens_of` int64 [documents] are their
    lengths. An epoch has as many tokens as the corpus. Each source is read over and over, each time in another random
    order, and an epoch begins where the one before it ended: the times that two documents of a source are read differ
    by at most one.
    """
    total = int(tokens_of.sum())
    parts = [
        _stretch(int(first), tokens_of[first:last], share * total, source, seed, epoch)
        for source, (first, last, share) in enumerate(zip(edges[:-1], edges[1:], shares, strict=True))
        if share > 0
    ]
    return Reading(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("document", "copy")))


def _stretch(first: int, tokens: np.ndarray, wanted: float, source: int, seed: int, epoch: int) -> Reading:
    """The documents of a source that begin in the epoch's part of the endless sequence of its readings."""
    held = int(tokens.sum())
    begin, end = round(epoch * wanted), round((epoch + 1) * wanted)
    documents, copies = [], []
    for number in range(begin // held, (max(end, 1) - 1) // held + 1):
        order = np.argsort(hash64(derive_key(seed, "mixture", source, number), np.arange(len(tokens))), kind="stable")
        starts = number * held + np.cumsum(tokens[order]) - tokens[order]
        read = order[np.searchsorted(starts, begin) : np.searchsorted(starts, end)]
        documents.append(first + read)
        copies.append(np.full(len(read), number, np.int64))
    return Reading(np.concatenate(documents), np.concatenate(copies))
