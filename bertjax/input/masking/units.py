"""Masking units: tokens, words, n-grams and spans of words, and units that are marked in the token store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from bertjax.config import DataConfig
from bertjax.config.registry import Registry
from bertjax.input.randomness import fold_in, hash64, uniform


@dataclass(frozen=True)
class Words:
    """The words of B rows of L tokens. Candidates are tokens that may be masked, numbered over all rows.

    A word may continue after a [SEP], as in google-research/bert.
    """

    shape: tuple[int, int]  # B, L
    cells: np.ndarray  # int64 [candidates]: row x L + column
    available: np.ndarray  # int64 [B]: candidates in each row
    starts: np.ndarray  # int64 [words + 1]: the first candidate of each word, and the number of candidates
    counts: np.ndarray  # int64 [B]: words in each row

    @classmethod
    def of(cls, candidates: np.ndarray, continues: np.ndarray) -> Words:
        """Find the words. `candidates` is bool [B, L]; `continues`, bool per candidate: it continues a word."""
        cells = np.flatnonzero(candidates)
        available = np.count_nonzero(candidates, axis=1)
        is_start = ~continues
        is_start[before(available)[available > 0]] = True
        starts = np.append(np.flatnonzero(is_start), len(cells))
        counts = np.bincount(cells[starts[:-1]] // candidates.shape[1], minlength=len(candidates))
        return cls(candidates.shape, cells, available, starts, counts)

    @cached_property
    def first(self) -> np.ndarray:
        """The first word of each row, int64 [B]."""
        return before(self.counts)

    @cached_property
    def first_candidate(self) -> np.ndarray:
        """The first candidate of each row, int64 [B]."""
        return before(self.available)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of tokens in each word, int64 [words]."""
        return np.diff(self.starts)

    @cached_property
    def candidate_words(self) -> np.ndarray:
        """The word of each candidate, int64 [candidates]."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def positions(self, is_chosen: np.ndarray, slots: int) -> np.ndarray:
        """Columns of the candidates with `is_chosen`: int64 [B, slots], ascending, L in unused slots."""
        rows, columns = np.divmod(self.cells[is_chosen], self.shape[1])
        positions = np.full((self.shape[0], slots), self.shape[1], np.int64)
        number = np.arange(len(rows)) - before(np.bincount(rows, minlength=self.shape[0]))[rows]
        positions[rows, number] = columns
        return positions


def before(counts: np.ndarray) -> np.ndarray:
    """Exclusive cumulative sum: the number of items in the rows before each row."""
    return np.cumsum(counts) - counts


_POSITION_MASK = 2**16 - 1
_LAST = np.uint64(2**64 - 1)
WORDS = "continues"  # the plane of the token store that marks words
EACH = "each"  # value of `data.mask_count` for independent draws


class Unit(ABC):
    """Chooses the tokens to mask."""

    needs_words: ClassVar[bool] = True  # `choose` needs `continues`
    share: float = 0.0  # above 0: the probability of each independent draw, up to `counts` tokens per row
    plane: str = WORDS  # plane of the token store that marks the units
    needs_plane: bool = False  # False: without the plane, the vocabulary determines which tokens continue a word

    @abstractmethod
    def choose(
        self, candidates: np.ndarray, continues: np.ndarray | None, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        """Choose columns to mask: int64 [B, slots], ascending, L in unused slots, at most `counts` per row.

        Args:
            candidates: bool [B, L], tokens that may be masked.
            continues: bool per candidate, in order: it belongs to the candidate before it.
            counts: int64 [B], at most the number of candidates and of slots.
            keys: uint64 [B]; the draws depend on nothing else.
            slots: Predictions per row.
        """


class Tokens(Unit):
    """Single tokens, drawn uniformly without replacement."""

    needs_words = False
    plane = ""

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray | None, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        order = shuffle_key(candidates, keys)
        length = order.shape[1]
        positions = np.full((len(order), slots), length, np.int64)
        width = min(slots, length)
        first = np.sort(np.partition(order, width - 1, axis=1)[:, :width], axis=1)
        positions[:, :width] = first & _POSITION_MASK
        positions[np.arange(slots) >= counts[:, None]] = length
        positions.sort(axis=1)
        return positions


class WordUnit(Unit):
    """Chooses tokens by their words."""

    def choose(
        self, candidates: np.ndarray, continues: np.ndarray | None, counts: np.ndarray, keys: np.ndarray, slots: int
    ) -> np.ndarray:
        assert continues is not None
        words = Words.of(candidates, continues)
        return words.positions(self.choose_words(words, counts, keys), slots)

    @abstractmethod
    def choose_words(self, words: Words, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Whether to mask each candidate, bool [candidates]: at most `counts` per row; `keys` as in `choose`."""


@dataclass(frozen=True)
class WholeWords(WordUnit):
    """Words in random order; a word with more tokens than are left to mask is skipped.

    Rule: create_masked_lm_predictions of google-research/bert, create_pretraining_data.py. With `share` > 0 each word
    is drawn independently with that probability; a drawn word that exceeds the row's remaining limit is skipped
    (PaddlePaddle/ERNIE 1.0, batching.py, has no limit).
    """

    share: float = 0.0
    plane: str = WORDS
    needs_plane: bool = False

    def choose_words(self, words: Words, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
        is_chosen = np.zeros(len(words.sizes), bool)
        remaining = counts.copy()
        for rows, number in _in_random_order(words.counts, keys, remaining, self.share):
            word = words.first[rows] + number
            fits = words.sizes[word] <= remaining[rows]
            is_chosen[word[fits]] = True
            remaining[rows] -= words.sizes[word] * fits
        return np.repeat(is_chosen, words.sizes)


@dataclass(frozen=True)
class NGrams(WordUnit):
    """Sequences of n words, n drawn with `shares`, in random order of their first words.

    Rule: create_masked_lm_predictions of google-research/albert, create_pretraining_data.py: the shares are rescaled to
    the n that end inside the row; an n-gram with more tokens than are left to mask is shortened by words, and skipped
    if no word fits or one of its words is masked already.
    """

    shares: tuple[float, ...]  # probabilities of n = 1, 2, ...

    def choose_words(self, words: Words, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
        length_keys, steps = fold_in(keys, "length"), np.arange(len(self.shares))
        edges = np.cumsum(self.shares)
        is_chosen = np.zeros(len(words.sizes) + len(self.shares), bool)  # room for n-grams that exceed the last word
        remaining = counts.copy()
        for rows, number in _in_random_order(words.counts, keys, remaining):
            fitting = np.minimum(words.counts[rows] - number, len(self.shares))
            drawn = uniform(hash64(length_keys[rows], number)) * edges[fitting - 1]
            size = np.minimum(1 + np.count_nonzero(drawn[:, None] >= edges, axis=1), fitting)
            members = (words.first[rows] + number)[:, None] + steps
            ends = words.starts[np.minimum(members + 1, len(words.sizes))]
            tokens = ends - words.starts[members[:, :1]]
            is_member = (steps < size[:, None]) & (tokens <= remaining[rows][:, None])
            is_member &= ~(is_member & is_chosen[members]).any(axis=1, keepdims=True)
            is_chosen[members[is_member]] = True
            remaining[rows] -= np.max(tokens, axis=1, where=is_member, initial=0)
        return np.repeat(is_chosen[: len(words.sizes)], words.sizes)


@dataclass(frozen=True)
class Spans(WordUnit):
    """Spans of a geometric number of words from a random token's word on: exactly `counts` tokens per row.

    Rule: facebookresearch/SpanBERT, masking.py: P(n) is proportional to p (1 - p)^(n - 1) for n up to `longest`; the
    last span is cut, even inside a word, when enough tokens are masked; spans may overlap, and tokens in both count
    once. Drawing tokens until one is not masked is equivalent to taking the first unmasked one in a random order.
    """

    p: float
    longest: int

    def choose_words(self, words: Words, counts: np.ndarray, keys: np.ndarray) -> np.ndarray:
        edges = np.cumsum(self.p * (1 - self.p) ** np.arange(self.longest))
        length_keys = fold_in(keys, "length")
        is_chosen = np.zeros(len(words.cells), bool)
        remaining = counts.copy()
        for rows, number in _in_random_order(words.available, keys, remaining):
            is_free = ~is_chosen[words.first_candidate[rows] + number]
            rows, number = rows[is_free], number[is_free]
            word = words.candidate_words[words.first_candidate[rows] + number]
            drawn = uniform(hash64(length_keys[rows], number)) * edges[-1]
            size = np.minimum(1 + np.searchsorted(edges, drawn, side="right"), self.longest)
            begin = words.starts[word]
            end = words.starts[np.minimum(word + size, words.first[rows] + words.counts[rows])]
            reach = begin[:, None] + np.arange(int((end - begin).max(initial=0)))
            is_new = (reach < end[:, None]) & ~is_chosen[np.minimum(reach, len(is_chosen) - 1)]
            is_new &= np.cumsum(is_new, axis=1) <= remaining[rows][:, None]
            is_chosen[reach[is_new]] = True
            remaining[rows] -= np.count_nonzero(is_new, axis=1)
        return is_chosen


def _in_random_order(
    counts: np.ndarray, keys: np.ndarray, remaining: np.ndarray, share: float = 0.0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (rows, an item of each) until each row's items are used up, in a random order per row.

    `counts`, int64 [B], is the number of items in each row. A row ends early when its entry of `remaining`, int64 [B],
    which the caller lowers, is 0. With a `share`, yields only items drawn with that probability.
    """
    column = np.arange(int(counts.max(initial=0)))
    drawn = np.sort(shuffle_key(column < counts[:, None], keys), axis=1)
    order = drawn & _POSITION_MASK
    if share:  # the drawn items come first, since both use the same hashes
        counts = np.minimum(np.count_nonzero(drawn < np.uint64(share * 2.0**64), axis=1), counts)
    rows = np.flatnonzero(remaining)
    for number in column.tolist():
        rows = rows[(remaining[rows] > 0) & (number < counts[rows])]
        if not len(rows):
            return
        yield rows, order[rows, number].astype(np.int64)


def shuffle_key(is_drawn: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Sort keys, uint64 [B, n], that shuffle each row's columns, those with `is_drawn` false last.

    The low bits of a key hold its column.
    """
    column = np.arange(is_drawn.shape[1], dtype=np.uint64)
    assert len(column) <= _POSITION_MASK
    order = hash64(keys[:, None], column)
    order &= ~np.uint64(_POSITION_MASK)
    order |= column
    np.copyto(order, _LAST, where=~is_drawn)
    return order


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
    """Makes the unit of a config. `make` raises ValueError for invalid options."""

    make: Callable[[DataConfig], Unit]
    options: tuple[str, ...] = ()  # fields of DataConfig that only this unit reads
    is_whole: bool = False  # whether it masks all tokens of a word or none


def _whole(plane: str, needs_plane: bool) -> UnitEntry:
    return UnitEntry(
        lambda data: WholeWords(data.mask_probability * (data.mask_count == EACH), plane, needs_plane), is_whole=True
    )


_ALL: dict[str, UnitEntry] = {
    "tokens": UnitEntry(lambda _: Tokens(), ("mask_power",)),
    "words": _whole(WORDS, False),
    "ngrams": UnitEntry(_ngrams, ("ngram_shares",), is_whole=True),  # ALBERT, MacBERT, DeBERTa
    "spans": UnitEntry(lambda data: Spans(data.span_p, data.span_max), ("span_p", "span_max")),  # SpanBERT
    "units": _whole(WORDS, True),  # words as the store marks them, not the vocabulary
    "phrases": _whole("phrases", True),  # ERNIE: phrases, and words outside of phrases
    "entities": _whole("entities", True),
}
UNITS = Registry("masking", _ALL, UnitEntry)
