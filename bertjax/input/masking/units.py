"""What is hidden together: single tokens, words, n-grams of words, spans of words, units that the store tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.masking.words import Words
from bertjax.input.randomness import fold_in, hash64, uniform

_POSITION_MASK = 2**16 - 1
_LAST = np.uint64(2**64 - 1)


class Unit(Protocol):
    """A way to choose the tokens to hide."""

    needs_words: ClassVar[bool]  # it must be told which tokens continue a word
    needs_plane: bool  # by the store; otherwise the vocabulary does, where the store has no plane

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray | None, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """Columns to hide, int64 [B, slots], ascending, L in unused slots: of each row as many as `counts` at most.

        `candidates` bool [B, L] is true where a token may be hidden; `continues`, bool for each candidate in order,
        says which belong to the candidate before them; `counts` int64 [B] is at most the candidates and the slots;
        `keys` uint64 [B] is all that the draws depend on.
        """
        ...


class Tokens:
    """Every token alone, `counts` of them without replacement."""

    needs_words = False
    needs_plane = False

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray | None, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """As `Unit` has it."""
        order = shuffle_key(candidates, keys)
        length = order.shape[1]
        positions = np.full((len(order), slots), length, np.int64)
        kept = min(slots, length)
        first = np.sort(np.partition(order, kept - 1, axis=1)[:, :kept], axis=1)
        positions[:, :kept] = first & _POSITION_MASK
        positions[np.arange(slots) >= counts[:, None]] = length
        positions.sort(axis=1)
        return positions


@dataclass(frozen=True)
class WholeWords:
    """Words in random order, of which one with more tokens than are still to be hidden is skipped.

    Rule: create_masked_lm_predictions of google-research/bert, create_pretraining_data.py.
    """

    needs_words: ClassVar[bool] = True
    needs_plane: bool = False

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """As `Unit` has it."""
        words = Words.of(candidates, continues)
        row = np.repeat(np.arange(len(counts)), words.counts)
        column = np.arange(len(row)) - words.first[row]
        table = np.zeros((len(counts), int(words.counts.max(initial=0))), np.int64)
        table[row, column] = words.sizes
        is_chosen = _fill_greedily(table, counts, keys)[row, column]
        return words.positions(np.repeat(is_chosen, words.sizes), slots)


@dataclass(frozen=True)
class NGrams:
    """n words in succession, n drawn with `shares`, in random order of their first words.

    Rule: create_masked_lm_predictions of google-research/albert, create_pretraining_data.py: the shares are scaled to
    the n that end inside the row; an n-gram too long for what is still to be hidden is shortened by words, and is
    skipped if no word fits or one of its words is hidden already.
    """

    shares: tuple[float, ...]  # of n = 1, 2, ...
    needs_words: ClassVar[bool] = True
    needs_plane: ClassVar[bool] = False

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """As `Unit` has it."""
        words = Words.of(candidates, continues)
        order = _shuffled(words.counts, keys)
        length_keys, steps = fold_in(keys, "length"), np.arange(len(self.shares))
        edges = np.cumsum(self.shares)
        is_chosen = np.zeros(len(words.sizes) + len(self.shares), bool)  # so that no n-gram reaches over the end
        left = counts.copy()
        active = np.flatnonzero(left)
        for column in range(order.shape[1]):
            active = active[(left[active] > 0) & (column < words.counts[active])]
            if not len(active):
                break
            word = order[active, column]
            fitting = np.minimum(words.counts[active] - word, len(self.shares))
            drawn = uniform(hash64(length_keys[active], word)) * edges[fitting - 1]
            wanted = np.minimum(1 + np.count_nonzero(drawn[:, None] >= edges, axis=1), fitting)
            members = words.first[active][:, None] + word[:, None] + steps
            ends = words.starts[np.minimum(members + 1, len(words.sizes))]
            tokens = ends - words.starts[members[:, 0]][:, None]
            is_member = (steps < wanted[:, None]) & (tokens <= left[active][:, None])
            is_member &= ~(is_member & is_chosen[members]).any(axis=1, keepdims=True)
            is_chosen[members[is_member]] = True
            left[active] -= np.max(tokens, axis=1, where=is_member, initial=0)
        return words.positions(np.repeat(is_chosen[: len(words.sizes)], words.sizes), slots)


@dataclass(frozen=True)
class Spans:
    """Words in succession from a random token's word on, their number geometric: exactly `counts` tokens of a row.

    Rule: facebookresearch/SpanBERT, masking.py: P(n) in proportion to p (1 - p)^(n - 1) for n up to `longest`; a span
    is cut, even inside a word, where enough is hidden; it may run over tokens that are hidden already, which count
    once. Drawing a token again while it is hidden is the same as taking the first one of a random order that is not.
    """

    p: float
    longest: int
    needs_words: ClassVar[bool] = True
    needs_plane: ClassVar[bool] = False

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """As `Unit` has it."""
        words = Words.of(candidates, continues)
        order = _shuffled(words.available, keys)
        edges = np.cumsum(self.p * (1 - self.p) ** np.arange(self.longest))
        length_keys = fold_in(keys, "length")
        is_chosen = np.zeros(len(words.cells), bool)
        left = counts.copy()
        active = np.flatnonzero(left)
        for column in range(order.shape[1]):
            active = active[left[active] > 0]
            if not len(active):
                break
            token = words.first_candidate[active] + order[active, column]
            rows = active[~is_chosen[token]]
            word = words.of_candidate[token[~is_chosen[token]]]
            drawn = uniform(hash64(length_keys[rows], np.full(len(rows), column))) * edges[-1]
            wanted = np.minimum(1 + np.searchsorted(edges, drawn, side="right"), self.longest)
            begin = words.starts[word]
            end = words.starts[np.minimum(word + wanted, words.first[rows] + words.counts[rows])]
            reach = begin[:, None] + np.arange(int((end - begin).max(initial=0)))
            is_new = (reach < end[:, None]) & ~is_chosen[np.minimum(reach, len(is_chosen) - 1)]
            is_new &= np.cumsum(is_new, axis=1) <= left[rows][:, None]
            is_chosen[reach[is_new]] = True
            left[rows] -= np.count_nonzero(is_new, axis=1)
        return words.positions(is_chosen, slots)


def shuffle_key(is_drawn: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """uint64 [B, n]: sorting a row shuffles its columns, those with `is_drawn` false last; low bits hold the column."""
    column = np.arange(is_drawn.shape[1], dtype=np.uint64)
    assert len(column) <= _POSITION_MASK
    order = hash64(keys[:, None], column)
    order &= ~np.uint64(_POSITION_MASK)
    order |= column
    np.copyto(order, _LAST, where=~is_drawn)
    return order


def _shuffled(counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The numbers below each row's count in random order, int64 [B, largest count]; what follows them means nothing."""
    column = np.arange(int(counts.max(initial=0)))
    order = np.sort(shuffle_key(column < counts[:, None], keys), axis=1)
    return (order & _POSITION_MASK).astype(np.int64)


def _fill_greedily(sizes: np.ndarray, room: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which of each row's words fit in its room, tried in random order: bool [B, n] from int64 [B, n] and int64 [B].

    A row with fewer than n words has size 0 in its last columns.
    """
    shuffled = np.sort(shuffle_key(sizes > 0, keys), axis=1) & _POSITION_MASK
    order = np.minimum(shuffled, max(sizes.shape[1] - 1, 0)).astype(np.int64)  # past a row's words, one of size 0
    left = room.copy()
    is_taken = np.zeros(sizes.shape[::-1], bool)
    for taken, size in zip(is_taken, np.take_along_axis(sizes, order, axis=1).T, strict=True):
        np.logical_and(size > 0, size <= left, out=taken)
        left -= size * taken
        if not left.any():
            break
    is_chosen = np.zeros(sizes.shape, bool)
    np.put_along_axis(is_chosen, order, is_taken.T, axis=1)
    return is_chosen


def _ngrams(data: DataConfig) -> NGrams:
    shares = data.ngram_shares
    if not shares or min(shares) < 0 or not shares[0] > 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"data.ngram_shares={shares} with data.masking={data.masking!r}: give the shares of n-grams of 1, 2, ... "
            "words; none may be negative, the first must be positive, and their sum must be 1"
        )
    return NGrams(tuple(shares))


@dataclass(frozen=True)
class UnitEntry:
    """How a config gets its unit. `make` raises ValueError for options that cannot be."""

    make: Callable[[DataConfig], Unit]
    options: tuple[str, ...] = ()  # fields of DataConfig that only this unit reads


UNITS = {
    "tokens": UnitEntry(lambda _: Tokens()),
    "words": UnitEntry(lambda _: WholeWords()),
    "ngrams": UnitEntry(_ngrams, ("ngram_shares",)),  # ALBERT, MacBERT, DeBERTa
    "spans": UnitEntry(lambda data: Spans(data.span_p, data.span_max), ("span_p", "span_max")),  # SpanBERT
    "units": UnitEntry(lambda _: WholeWords(needs_plane=True)),  # ERNIE: phrases and entities
}
