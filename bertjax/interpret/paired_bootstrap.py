"""The paired bootstrap: tests whether a difference between two systems may be due to the sample of examples.

Examples are drawn with replacement, the same for both systems, and the difference is measured again (Efron and
Tibshirani 1993; Berg-Kirkpatrick et al. 2012, "An Empirical Investigation of Statistical Significance in NLP"). Only
examples are resampled: the variance between training runs is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
_CELLS = 1 << 22  # drawn at a time
_SEED = 0

# The figure of each resample, from the indices of its examples [resamples, examples].
Statistic = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Difference:
    """A figure of two systems, the second minus the first."""

    first: float
    second: float
    low: float  # of the 95 % interval, by percentiles
    high: float
    p_value: float  # two-sided: the chance of a difference at least as large if there were none

    @property
    def value(self) -> float:
        """Second minus first."""
        return self.second - self.first


def ratio_of_sums(sums: np.ndarray, weights: np.ndarray) -> Statistic:
    """A loss or an accuracy over examples with several predictions each: sums over weights, both [examples]."""
    return lambda drawn: sums[drawn].sum(axis=1) / weights[drawn].sum(axis=1)


def paired_bootstrap(first: Statistic, second: Statistic, examples: int, resamples: int = RESAMPLES) -> Difference:
    """Compare two figures of the same examples; the resamples are always the same.

    The p-value is the share of resamples whose difference is at least as far from the observed one as that is from 0:
    the distribution is shifted to have no difference. One is added to both counts, so that it is never 0. Resamples
    with an undefined figure, such as the correlation of a constant, are left out.
    """
    assert examples > 0, "no examples"
    whole = np.arange(examples)[None]
    observed = float(first(whole)[0]), float(second(whole)[0])
    difference = observed[1] - observed[0]
    draw, parts = np.random.default_rng(_SEED), []
    at_once = max(1, _CELLS // examples)
    for begin in range(0, resamples, at_once):
        drawn = draw.integers(examples, size=(min(at_once, resamples - begin), examples))
        parts.append(second(drawn) - first(drawn))
    differences = np.concatenate(parts)
    differences = differences[np.isfinite(differences)]
    if not len(differences) or not math.isfinite(difference):
        return Difference(*observed, math.nan, math.nan, math.nan)
    low, high = np.quantile(differences, (0.025, 0.975)).tolist()
    # Rounding alone must not separate a resample from its mirror image.
    margin = 1e-12 * max(map(abs, observed))
    beyond = int((np.abs(differences - difference) >= abs(difference) - margin).sum())
    return Difference(*observed, low, high, (beyond + 1) / (len(differences) + 1))
