"""The order in which a run reads a text: in windows that are each shuffled as a whole.

A text of up to `WINDOW_TOKENS` is one window, which is an epoch. A larger text is cut into parts, which each epoch
deals into windows of about that size, in a new random order. So the time to start and the memory depend on the size of
a window, not of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from bertjax.input.layout import TextView
from bertjax.input.plan import Reading, every_document
from bertjax.input.randomness import derive_key, hash64, permute
from bertjax.text.ragged import range_indices
from bertjax.text.store.format import Part, SplitView
from bertjax.text.store.manifest import WINDOW_TOKENS as WINDOW_TOKENS

_WINDOW_PARTS = 16
_MOST_DIVISION = 4  # a lane's window is smaller than a whole batch's, by at most this factor


class Lane(NamedTuple):
    """One of several equal parts of every batch."""

    number: int  # from 0
    lanes: int  # number of lanes


WHOLE_BATCH = Lane(0, 1)


def lane_window(tokens: int, lanes: int) -> int:
    """Size of a window in one of several lanes, if a window of a whole batch has `tokens` tokens."""
    return max(tokens // lanes, tokens // _MOST_DIVISION)


@dataclass(frozen=True)
class Window:
    """A text, and which of its documents are read."""

    text: TextView
    reading: Reading | None  # None: each document once

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are read; a document that is read several times counts several times."""
        if self.reading is None:
            return self.text.num_tokens
        lengths = np.diff(self.text.sentence_offsets[self.text.document_offsets])
        return int(lengths[self.reading.document].sum())


class Windows:
    """The windows of a run over a split, in order: window n is the (n mod `count`)-th of epoch n // `count`.

    With `shares`, float64 [sources], an epoch has as many tokens as the split, and each source its share of them, up to
    one document, or one part if there are several windows. A lane reads the parts of a large text that are dealt to it.
    A pure function of the split, the shares, the seed and the lane.
    """

    def __init__(
        self, split: TextView, shares: np.ndarray | None, seed: int, tokens: int, lane: Lane = WHOLE_BATCH
    ) -> None:
        self.split, self._shares, self._seed = split, shares, seed
        self.count, self.is_whole = 1, True
        if isinstance(split, SplitView) and split.num_tokens > tokens:
            size = lane_window(tokens, lane.lanes)
            self._parts = _deal(split.parts(max(size // _WINDOW_PARTS, 1), lane.lanes), lane)
            self._tokens = np.array([part.tokens for part in self._parts])
            self.count, self.is_whole = -(-int(self._tokens.sum()) // size), False
            homes = np.array([part.source for part in self._parts])
            self._edges = np.searchsorted(homes, np.arange(split.num_sources + 1))
            if shares is not None and (lacking := np.flatnonzero((np.diff(self._edges) == 0) & (shares > 0))).size:
                raise ValueError(
                    f"data.lanes={lane.lanes}: source {lacking[0]} has too few documents for that many lanes; lower "
                    "data.lanes, or give the source the weight 0"
                )
            order = partial(_epoch_order, self._tokens, self._edges, shares, seed)  # a method would be in a cycle
            self._order = lru_cache(maxsize=2)(order)

    def get(self, number: int) -> Window:
        """Return window `number`. Reads the offsets at the edges of its parts."""
        if self.is_whole:
            if self._shares is None:
                return Window(self.split, None)
            lengths = np.diff(self.split.sentence_offsets[self.split.document_offsets])
            return Window(self.split, mix_sources(self.split.source_edges, lengths, self._shares, self._seed, number))
        epoch, place = divmod(number, self.count)
        order = self._order(epoch)
        tokens = self._tokens[order.document]
        window_numbers = (np.cumsum(tokens) - tokens) * self.count // tokens.sum()
        chosen = np.flatnonzero(window_numbers == place)
        parts, inverse = np.unique(order.document[chosen], return_inverse=True)
        assert isinstance(self.split, SplitView)
        text = self.split.select([self._parts[part] for part in parts.tolist()])
        if self._shares is None:
            return Window(text, None)
        sizes = np.array([self._parts[part].stop - self._parts[part].first for part in parts.tolist()])
        firsts = np.cumsum(sizes) - sizes
        documents = range_indices(firsts[inverse], sizes[inverse])
        return Window(text, Reading(documents, np.repeat(order.copy[chosen], sizes[inverse])))


def _epoch_order(tokens: np.ndarray, edges: np.ndarray, shares: np.ndarray | None, seed: int, epoch: int) -> Reading:
    """Order the parts of an epoch, with the copy number of each; `tokens` and `edges` as in `mix_sources`.

    The parts of a source are in random order and evenly spaced, so that every window has each source's share.
    """
    reading = every_document(len(tokens)) if shares is None else mix_sources(edges, tokens, shares, seed, epoch)
    sizes, positions = tokens[reading.document], np.empty(len(reading))
    sources = np.searchsorted(edges, reading.document, side="right") - 1
    present = np.unique(sources)
    for source, key in zip(present, hash64(derive_key(seed, "parts", epoch), present).tolist(), strict=True):
        (own,) = np.nonzero(sources == source)
        own = own[permute(np.arange(len(own)), len(own), key)]
        ends = np.cumsum(sizes[own])
        positions[own] = (ends - key / 2**64 * sizes[own]) / ends[-1]
    order = np.argsort(positions, kind="stable")
    return Reading(reading.document[order], reading.copy[order])


def _deal(parts: list[Part], lane: Lane) -> list[Part]:
    """The parts of a lane, in order. Each source's parts are dealt randomly, but the same way in every run."""
    draws = hash64(derive_key("lanes"), np.arange(len(parts)))
    chosen = np.lexsort((draws, np.array([part.source for part in parts])))[lane.number :: lane.lanes]
    return [parts[number] for number in np.sort(chosen).tolist()]


def one_of_each_group(groups: np.ndarray, seed: int, epoch: int) -> Reading:
    """Draw one document of each group uniformly; returned in document order.

    Two-level sampling, as of UniRef's clusters for protein models. `groups` is uint64 [documents].
    """
    drawn = hash64(derive_key(seed, "member", epoch), np.arange(len(groups)))
    order = np.lexsort((drawn, groups))
    is_first = np.append(True, groups[order][1:] != groups[order][:-1])
    documents = np.sort(order[is_first])
    return Reading(documents, np.zeros_like(documents))


def token_shares(tokens: Sequence[int], weights: Sequence[float], temperature: float) -> np.ndarray:
    """Each source's share of an epoch's tokens, float64 [sources]; `tokens` is the size of each source.

    Proportional to `weights`, one per source, or without weights to tokens ** temperature (multilingual BERT smooths
    with 0.7). Raises ValueError for a positive weight of a source without documents.
    """
    if weights and len(weights) != len(tokens):
        raise ValueError(f"data.weights={tuple(weights)}: the token store has {len(tokens)} sources; give one for each")
    sizes = np.asarray(tokens, np.float64)
    target = np.asarray(weights, np.float64) if weights else np.where(sizes > 0, sizes**temperature, 0)
    empty = np.flatnonzero((sizes == 0) & (target > 0)).tolist()
    if empty:
        raise ValueError(
            f"data.weights={tuple(weights)}: source {empty[0]} has no training documents; give it the weight 0"
        )
    return target / target.sum()


def mix_sources(edges: np.ndarray, lengths: np.ndarray, shares: np.ndarray, seed: int, epoch: int) -> Reading:
    """The documents of one epoch, in which each source has its share of the tokens, up to one document.

    The documents of source n are [edges[n], edges[n + 1]), int64 [sources + 1]; `lengths`, int64 [documents], are their
    lengths. An epoch has as many tokens as the corpus. Each source is read repeatedly, each time in another random
    order, and an epoch continues where the previous one ended. So any two documents of a source are read equally often,
    up to one reading.
    """
    total = int(lengths.sum())
    parts = [
        _stretch(int(first), lengths[first:last], share * total, source, seed, epoch)
        for source, (first, last, share) in enumerate(zip(edges[:-1], edges[1:], shares, strict=True))
        if share > 0
    ]
    return Reading(np.concatenate([part.document for part in parts]), np.concatenate([part.copy for part in parts]))


def _stretch(first: int, tokens: np.ndarray, target: float, source: int, seed: int, epoch: int) -> Reading:
    """The documents of a source that begin in the epoch's interval of the endless sequence of readings."""
    size = int(tokens.sum())
    begin, end = round(epoch * target), round((epoch + 1) * target)
    documents, copies = [], []
    for number in range(begin // size, (max(end, 1) - 1) // size + 1):
        order = np.argsort(hash64(derive_key(seed, "mixture", source, number), np.arange(len(tokens))), kind="stable")
        starts = number * size + np.cumsum(tokens[order]) - tokens[order]
        read = order[np.searchsorted(starts, begin) : np.searchsorted(starts, end)]
        documents.append(first + read)
        copies.append(np.full(len(read), number, np.int64))
    return Reading(np.concatenate(documents), np.concatenate(copies))
