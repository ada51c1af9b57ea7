"""The paired bootstrap: intervals equal SciPy's, p-values match known distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertjax.interpret.paired_bootstrap import paired_bootstrap, ratio_of_sums


def losses(count: int, shift: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss sums of two systems, correlated by example, and the examples' weights."""
    draw = np.random.default_rng(seed)
    weights = draw.integers(5, 20, count).astype(float)
    hard = draw.normal(4.0, 1.0, count)
    first, second = (hard + draw.normal(0, 0.3, count) + by for by in (0.0, shift))
    return weights * first, weights * second, weights


def test_interval_equals_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second, weights = losses(300, -0.05, seed=1)
    result = paired_bootstrap(ratio_of_sums(first, weights), ratio_of_sums(second, weights), 300)

    def difference(a: np.ndarray, b: np.ndarray, w: np.ndarray, axis: int = -1) -> np.ndarray:
        return b.sum(axis) / w.sum(axis) - a.sum(axis) / w.sum(axis)

    theirs = stats.bootstrap((first, second, weights), difference, paired=True, vectorized=True, n_resamples=10_000,
                             method="percentile", rng=np.random.default_rng(5))  # fmt: skip
    assert result.value == pytest.approx(difference(first, second, weights), rel=1e-12)
    spread = theirs.standard_error
    assert result.low == pytest.approx(theirs.confidence_interval.low, abs=0.08 * spread)
    assert result.high == pytest.approx(theirs.confidence_interval.high, abs=0.08 * spread)
    # The mean of 300 examples is nearly normal.
    normal = 2 * stats.norm.sf(abs(result.value) / spread)
    assert result.p_value == pytest.approx(normal, abs=0.01)


def test_pairing_reveals_a_small_difference() -> None:
    """The examples differ far more than the systems, so that an unpaired test finds nothing."""
    first, second, weights = losses(200, -0.1, seed=2)
    paired = paired_bootstrap(ratio_of_sums(first, weights), ratio_of_sums(second, weights), 200)
    assert paired.p_value < 0.001 and paired.high < 0
    shuffled = np.random.default_rng(0).permutation(200)
    apart = paired_bootstrap(
        ratio_of_sums(first, weights), ratio_of_sums(second[shuffled], weights[shuffled]), 200, 2_000
    )
    assert apart.p_value > 0.05 and apart.low < 0 < apart.high


def test_p_values_are_uniform_without_a_difference() -> None:
    small = 0
    for seed in range(200):
        first, second, weights = losses(60, 0.0, seed=100 + seed)
        small += paired_bootstrap(ratio_of_sums(first, weights), ratio_of_sums(second, weights), 60, 400).p_value < 0.1
    assert 8 <= small <= 34  # 20 are expected of 200; the bounds are those of the binomial at 1 in 1,000


def test_equal_systems_have_a_p_value_of_1() -> None:
    first, _, weights = losses(50, 0.0, seed=3)
    same = paired_bootstrap(ratio_of_sums(first, weights), ratio_of_sums(first, weights), 50, 500)
    assert (same.value, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    again = paired_bootstrap(ratio_of_sums(first, weights), ratio_of_sums(first[::-1], weights[::-1]), 50, 500)
    assert again == paired_bootstrap(
        ratio_of_sums(first, weights), ratio_of_sums(first[::-1], weights[::-1]), 50, 500
    ), "always the same resamples"


def test_undefined_figures_have_no_p_value() -> None:
    nothing = paired_bootstrap(lambda drawn: np.full(len(drawn), np.nan), lambda drawn: np.ones(len(drawn)), 5, 20)
    assert math.isnan(nothing.p_value) and math.isnan(nothing.value)
