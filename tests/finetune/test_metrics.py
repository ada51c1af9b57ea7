"""Figures equal those of scikit-learn and scipy, on random series and on what a simple rule predicts of real data."""

from __future__ import annotations

import csv
import lzma
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.metrics.classification import accuracy, f1, matthews, pearson, spearman

sklearn = pytest.importorskip("sklearn.metrics", reason="needs scikit-learn")
scipy = pytest.importorskip("scipy.stats", reason="needs scipy")

CLASSES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)
NUMBERS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 2.5, 3.25]), st.floats(-1e3, 1e3, width=32)), min_size=2, max_size=40
)


@settings(max_examples=40)
@given(CLASSES)
def test_classes(pairs: list[tuple[int, int]]) -> None:
    predicted, labels = (np.array(side) for side in zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert accuracy(predicted, labels) == pytest.approx(sklearn.accuracy_score(labels, predicted), abs=1e-12)
        assert matthews(predicted, labels) == pytest.approx(sklearn.matthews_corrcoef(labels, predicted), abs=1e-12)
        for positive in range(4):
            wanted = sklearn.f1_score(labels == positive, predicted == positive, zero_division=0)
            assert f1(predicted, labels, positive) == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=80)
@given(NUMBERS)
def test_numbers(pairs: list[tuple[float, float]]) -> None:
    x, y = (np.array(side) for side in zip(*pairs, strict=True))
    constant = (x == x[0]).all() or (y == y[0]).all()
    assert math.isnan(spearman(x, y)) == constant
    if not constant:
        assert spearman(x, y) == pytest.approx(scipy.spearmanr(x, y).statistic, abs=1e-12)
        # Both lose digits where all values are nearly one.
        slack = 1e-12 + 1e-14 * np.abs(y).max() / np.ptp(y)
        assert pearson(x, y) == pytest.approx(scipy.pearsonr(x, y).statistic, abs=slack)
        assert pearson(x, x) == pytest.approx(1) and pearson(x, -x) == pytest.approx(-1)


def rows(path: Path, encoding: str = "utf-8") -> list[list[str]]:
    with lzma.open(path, "rt", encoding=encoding, newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def overlap(first: str, second: str) -> float:
    a, b = (set(text.lower().split()) for text in (first, second))
    return len(a & b) / max(len(a | b), 1)


def test_on_real_data_to_the_last_digit_printed(real_data: Path) -> None:
    """Paraphrases and similarities guessed from the words that two sentences share."""
    header, *pairs = rows(real_data / "glue" / "MRPC" / "dev.tsv.xz", "utf-8-sig")
    labels = np.array([int(row[0]) for row in pairs])
    guessed = np.array([int(overlap(row[3], row[4]) > 0.4) for row in pairs])
    assert 0.5 < accuracy(guessed, labels) < 1 and len(header) == 5
    for ours, theirs in (
        (accuracy, sklearn.accuracy_score),
        (f1, sklearn.f1_score),
        (matthews, sklearn.matthews_corrcoef),
    ):
        assert f"{ours(guessed, labels):.12f}" == f"{theirs(labels, guessed):.12f}"
    header, *pairs = (row for row in rows(real_data / "glue" / "STS-B" / "dev.tsv.xz") if len(row) > 9)
    labels = np.array([float(row[9]) for row in pairs])
    guessed = np.array([overlap(row[7], row[8]) for row in pairs])
    assert len(np.unique(guessed)) < len(guessed) / 2, "many ties"
    for ours, theirs in ((pearson, scipy.pearsonr), (spearman, scipy.spearmanr)):
        assert ours(guessed, labels) > 0.4
        assert f"{ours(guessed, labels):.12f}" == f"{theirs(guessed, labels).statistic:.12f}"


def test_very_small_and_very_large_numbers_correlate() -> None:
    assert pearson([1e-200, 2e-200, 3e-200], [1e200, 2e200, 3e200]) == pytest.approx(1)


def test_counts_beyond_64_bits_do_not_overflow() -> None:
    labels = np.arange(200_000) % 2
    assert matthews(labels, labels) == 1 and matthews(1 - labels, labels) == -1


@pytest.mark.parametrize("figure", [accuracy, f1, matthews, pearson, spearman])
def test_unequal_or_empty_or_nan_is_refused(figure) -> None:
    for predicted, labels in (([1, 2], [1]), ([], []), ([[1]], [[1]])):
        with pytest.raises(ValueError, match="one of each for every example"):
            figure(predicted, labels)
    with pytest.raises(ValueError, match="NaN"):
        figure([1.0, math.nan], [1.0, 2.0])
