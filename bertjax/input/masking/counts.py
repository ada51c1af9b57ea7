"""Registry of rules for the number of masked tokens in a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from bertjax.config.registry import Registry
from bertjax.input.masking.units import EACH
from bertjax.input.randomness import fold_in, hash64, uniform

_ROUNDING = 1e-6
_DEVIATIONS = 4  # independent draws are cut above this many standard deviations, which 1 in 30,000 rows exceeds
_ROW_DEVIATIONS = 6  # deviations that fit in a packed row; from 64 tokens on, fewer than one row in a million has more


@dataclass(frozen=True)
class Count:
    """A rule for the number of masked tokens."""

    # (tokens of each sequence, including special tokens; tokens that may be masked; uint64 keys; share) -> int64 [B]
    draw: Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]
    # (tokens, sequences, share, shortest) -> the largest number for a row of `sequences` sequences with `tokens` tokens
    # in total and at least `shortest` each
    most: Callable[[int, int, float, int], int]
    # (tokens, share) -> the smallest `max_predictions` that never cuts a sequence of `tokens` tokens
    least_limit: Callable[[int, float], int]
    may_be_full: bool = False  # `most` may be exceeded; then the last predictions of a packed row are dropped


def _round(tokens: np.ndarray, _: np.ndarray, __: np.ndarray, share: float) -> np.ndarray:
    return np.maximum(np.rint(tokens * share), 1).astype(np.int64)  # half to even, like Python's round


def _most_rounded(tokens: int, sequences: int, share: float, shortest: int) -> int:
    # A sequence of n tokens has max(1, round(n p)), which exceeds n p by at most this excess.
    excess = max(0.5, 1 - shortest * share)
    return int(share * tokens + excess * sequences + _ROUNDING)


def _random_round(tokens: np.ndarray, _: np.ndarray, keys: np.ndarray, share: float) -> np.ndarray:
    return (tokens * share + uniform(fold_in(keys, "count"))).astype(np.int64)


def _ceil_of_text(_: np.ndarray, available: np.ndarray, __: np.ndarray, share: float) -> np.ndarray:
    return np.ceil(available * share).astype(np.int64)


def _each(_: np.ndarray, available: np.ndarray, keys: np.ndarray, share: float) -> np.ndarray:
    """Successes among one draw per token; choosing that many tokens uniformly is equivalent to independent draws."""
    column = np.arange(int(available.max(initial=0)))
    hits = uniform(hash64(fold_in(keys, "count")[:, None], column)) < share
    drawn = np.count_nonzero(hits & (column < available[:, None]), axis=1)
    deviation = np.sqrt(available * share * (1 - share))
    return np.minimum(drawn, (available * share + _DEVIATIONS * deviation).astype(np.int64) + 1)


def _most_each(tokens: int, sequences: int, share: float, _: int = 0) -> int:
    # The sum of the square roots of n numbers is largest when they are equal (Cauchy and Schwarz).
    spread = sqrt(tokens * share * (1 - share))
    at_worst = int(share * tokens + _DEVIATIONS * sqrt(sequences) * spread) + sequences
    return min(at_worst, int(share * tokens + _ROW_DEVIATIONS * spread) + 1)


@dataclass(frozen=True)
class UnitLimit:
    """The largest number of masked tokens when units are drawn independently.

    The variance depends on the sizes of units in the text, so the limit of a full row is given as `full`. At most
    share n + c sqrt(n) + 1 of n tokens are masked, where c gives `full` for `length` tokens.
    """

    length: int  # tokens of a row
    share: float
    full: int  # `max_predictions`

    @property
    def _spread(self) -> float:
        return max(self.full - 1 - self.length * self.share, 0) / sqrt(self.length)

    def limit(self, available: np.ndarray) -> np.ndarray:
        """The limit for sequences with `available` tokens, int64 [B] both."""
        room = available * self.share + self._spread * np.sqrt(available)
        return np.minimum((room + _ROUNDING).astype(np.int64) + 1, self.full)

    def most(self, sequences: int) -> int:
        """The limit for a row of `sequences` sequences; for the square roots see `_most_each`."""
        room = self.length * self.share + self._spread * sqrt(sequences * self.length)
        return min(int(room + _ROUNDING) + sequences, self.length)


_ALL = {
    "round": Count(_round, _most_rounded, lambda *_: 1),  # google-research/bert, which truncates to max_predictions
    "random_round": Count(  # RoBERTa (fairseq, mask_tokens_dataset.py): the expected share is exact
        _random_round, lambda tokens, sequences, share, _: int(share * tokens) + sequences, lambda n, p: ceil(n * p)
    ),
    EACH: Count(  # ModernBERT: independent draws
        _each, _most_each, lambda n, p: _most_each(n, 1, p), may_be_full=True
    ),
    "ceil_of_text": Count(  # SpanBERT, masking.py: special tokens do not count
        _ceil_of_text, lambda tokens, sequences, share, _: int(share * tokens) + sequences, lambda n, p: ceil(n * p)
    ),
}
COUNTS = Registry("mask_counts", _ALL, Count)
