"""Words in rows, held flat: of the tokens that may be hidden, which ones belong together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Words:
    """The words of B rows of L tokens. A candidate is a token that may be hidden; candidates are counted over all rows.

    A word may go on behind a [SEP], as in google-research/bert.
    """

    shape: tuple[int, int]  # B, L
    cells: np.ndarray  # int64 [candidates]: row x L + column
    available: np.ndarray  # int64 [B]: candidates of each row
    starts: np.ndarray  # int64 [words + 1]: the first candidate of each word, and the number of candidates
    counts: np.ndarray  # int64 [B]: words of each row

    @classmethod
    def of(cls, candidates: np.ndarray, continues: np.ndarray) -> Words:
        """The words of rows, from bool [B, L] and, for each candidate in order, whether it continues a word."""
        cells = np.flatnonzero(candidates)
        available = np.count_nonzero(candidates, axis=1)
        is_start = ~continues
        is_start[before(available)[available > 0]] = True
        starts = np.append(np.flatnonzero(is_start), len(cells))
        counts = np.bincount(cells[starts[:-1]] // candidates.shape[1], minlength=len(candidates))
        return cls(candidates.shape, cells, available, starts, counts)

    @cached_property
    def first(self) -> np.ndarray:
        """int64 [B]: the first word of each row."""
        return before(self.counts)

    @cached_property
    def first_candidate(self) -> np.ndarray:
        """int64 [B]: the first candidate of each row."""
        return before(self.available)

    @cached_property
    def sizes(self) -> np.ndarray:
        """int64 [words]: tokens of each word."""
        return np.diff(self.starts)

    @cached_property
    def of_candidate(self) -> np.ndarray:
        """int64 [candidates]: the word of each."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def positions(self, is_chosen: np.ndarray, slots: int) -> np.ndarray:
        """Columns of the chosen candidates, bool [candidates]: int64 [B, slots], ascending, L in unused slots."""
        rows, columns = np.divmod(self.cells[is_chosen], self.shape[1])
        positions = np.full((self.shape[0], slots), self.shape[1], np.int64)
        number = np.arange(len(rows)) - before(np.bincount(rows, minlength=self.shape[0]))[rows]
        positions[rows, number] = columns
        return positions


def before(counts: np.ndarray) -> np.ndarray:
    """How many there are in all rows before each row."""
    return np.cumsum(counts) - counts
