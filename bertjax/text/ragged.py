"""Rows of unequal numbers of parts, held as flat arrays: `row` int64[N], ascending, says whose each part is."""

from __future__ import annotations

import numpy as np


def before_in_row(row: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """How much of its row comes before each part, int64[N], if part n is `sizes[n]` long."""
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    return before - np.repeat(before[starts], np.diff(starts, append=len(row)))


def places_in(begin: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Every place of the ranges [begin, begin + size), one after another: int64 [sum of sizes]."""
    return np.repeat(begin - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
