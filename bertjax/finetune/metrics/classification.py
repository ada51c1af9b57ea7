"""Metrics of classification and regression, over all examples at once, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Share of predictions that equal the label. Raises ValueError for empty series or different lengths."""
    predicted, labels = _check_pairs(predicted, labels)
    return float(np.mean(predicted == labels))


def f1(predicted: ArrayLike, labels: ArrayLike, positive: object = 1) -> float:
    """Harmonic mean of precision and recall of `positive`; 0 if it is neither predicted nor a label."""
    predicted, labels = _check_pairs(predicted, labels)
    hits = int(np.sum((predicted == positive) & (labels == positive)))
    either = int(np.sum(predicted == positive)) + int(np.sum(labels == positive))
    return 2 * hits / either if either else 0.0


def matthews(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Matthews correlation of any number of classes (Gorodkin 2004); 0 if predictions or labels are all one class."""
    predicted, labels = _check_pairs(predicted, labels)
    classes, numbers = np.unique(np.concatenate([predicted, labels]), return_inverse=True)
    # Python's integers: a product of four counts does not fit 64 bits.
    ours, theirs = (np.bincount(part, minlength=len(classes)).tolist() for part in np.split(numbers, 2))
    total, hits = len(labels), int(np.sum(predicted == labels))
    together = hits * total - sum(a * b for a, b in zip(ours, theirs, strict=True))
    spread = (total**2 - sum(a * a for a in ours)) * (total**2 - sum(b * b for b in theirs))
    return together / math.sqrt(spread) if spread else 0.0


def pearson(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Linear correlation of two series of numbers; NaN if one of them is constant."""
    from scipy import stats

    x, y = (np.asarray(part, np.float64) for part in _check_pairs(predicted, labels))
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    correlation: Any = stats.pearsonr(x, y)
    return float(correlation.statistic)


def spearman(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Rank correlation of two series; ties have the mean of their ranks. NaN if one series is constant."""
    from scipy import stats

    predicted, labels = _check_pairs(predicted, labels)
    return pearson(stats.rankdata(predicted), stats.rankdata(labels))


def macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Mean F1 over the classes that are predicted or labels."""
    return float(np.mean([f1(predicted, labels, label) for label in np.union1d(predicted, labels)]))


def compute_metrics(metrics: Sequence[str], predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute metrics of predictions and labels, [n] each, by name. Raises ValueError as the metrics do."""
    return {name: _FIGURES[name](predicted, labels) for name in metrics}


def require_finite(logits: np.ndarray) -> np.ndarray:
    """Return the logits. Raises ValueError if one is not finite."""
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite; has the model diverged?")
    return logits


def _check_pairs(predicted: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = np.asarray(predicted), np.asarray(labels)
    if ours.shape != theirs.shape or ours.ndim != 1 or not len(ours):
        raise ValueError(
            f"predictions have shape {ours.shape} and labels {theirs.shape}; give one of each for every example"
        )
    if any(part.dtype.kind == "f" and np.isnan(part).any() for part in (ours, theirs)):
        raise ValueError("a prediction or label is NaN; has the model diverged?")
    return ours, theirs


_FIGURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,  # of the second of two labels
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
