"""Metrics match scikit-learn and scipy on random series."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.metrics.classification import accuracy, f1, macro_f1, matthews, pearson, spearman

scipy = pytest.importorskip("scipy.stats", reason="needs scipy")

CLASSES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)
NUMBERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.5, 3.25]), st.floats(-1e3, 1e3, width=32)), min_size=2, max_size=40
)


@settings(max_examples=40)
@given(CLASSES)
def test_class_metrics_match_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
    predicted, labels = (np.array(side) for side in zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert accuracy(predicted, labels) == pytest.approx(sklearn.accuracy_score(labels, predicted), abs=1e-12)
        assert matthews(predicted, labels) == pytest.approx(sklearn.matthews_corrcoef(labels, predicted), abs=1e-12)
        expected = sklearn.f1_score(labels, predicted, average="macro")
        assert macro_f1(predicted, labels) == pytest.approx(expected, abs=1e-12)
        for positive in range(5):
            expected = sklearn.f1_score(labels == positive, predicted == positive, zero_division=0)
            assert f1(predicted, labels, positive) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=80)
@given(NUMBERS)
def test_correlations_match_scipy(pairs: list[tuple[float, float]]) -> None:
    x, y = (np.array(side) for side in zip(*pairs, strict=True))
    constant = (x == x[0]).all() or (y == y[0]).all()
    assert math.isnan(spearman(x, y)) == constant
    if not constant:
        assert spearman(x, y) == pytest.approx(scipy.spearmanr(x, y).statistic, abs=1e-12)
        # Both lose digits if all values are almost equal.
        slack = 1e-12 + 1e-14 * np.abs(y).max() / np.ptp(y)
        assert pearson(x, y) == pytest.approx(scipy.pearsonr(x, y).statistic, abs=slack)
        assert pearson(x, x) == pytest.approx(1) and pearson(x, -x) == pytest.approx(-1)


def test_pearson_handles_very_small_and_large_numbers() -> None:
    assert pearson([1e-200, 2e-200, 3e-200], [1e200, 2e200, 3e200]) == pytest.approx(1)


def test_matthews_does_not_overflow() -> None:
    labels = np.arange(200_000) % 2
    assert matthews(labels, labels) == 1 and matthews(1 - labels, labels) == -1


@pytest.mark.parametrize("figure", [accuracy, f1, matthews, pearson, spearman])
def test_metrics_reject_unequal_empty_or_nan_series(figure) -> None:
    for predicted, labels in (([1, 2], [1]), ([], []), ([[1]], [[1]])):
        with pytest.raises(ValueError, match="one of each for every example"):
            figure(predicted, labels)
    with pytest.raises(ValueError, match="NaN"):
        figure([1.0, math.nan], [1.0, 2.0])
