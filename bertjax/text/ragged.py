"""Ragged arrays: rows of unequal length as flat arrays; `row` int64 [N], ascending, is the row of each element."""

from __future__ import annotations

import numpy as np


def before_in_row(row: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The exclusive cumulative sum of `sizes` within each row: int64 [N]."""
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return before - np.repeat(before[starts], np.diff(starts, append=len(row)))


def range_indices(begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The indices of the ranges [begin, begin + size), concatenated: int64 [sum of sizes]."""
    return np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


def grouped(values: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Each distinct value, ascending, with its positions, int64."""
    return [(value, np.flatnonzero(values == value)) for value in np.unique(values).tolist()]
