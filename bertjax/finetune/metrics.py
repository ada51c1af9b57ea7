"""Figures of classification and regression, over all examples at once, in float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Share of the predictions that are the label. Raises ValueError if there is none, or not one for each label."""
    predicted, labels = _paired(predicted, labels)
    return float(np.mean(predicted == labels))


def f1(predicted: ArrayLike, labels: ArrayLike, positive: object = 1) -> float:
    """Harmonic mean of precision and recall of the class `positive`; 0 if it is neither predicted nor a label."""
    predicted, labels = _paired(predicted, labels)
    hits = int(np.sum((predicted == positive) & (labels == positive)))
    either = int(np.sum(predicted == positive)) + int(np.sum(labels == positive))
    return 2 * hits / either if either else 0.0


def matthews(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Matthews correlation of any number of classes (Gorodkin 2004); 0 if predictions or labels are all one class."""
    predicted, labels = _paired(predicted, labels)
    classes, numbers = np.unique(np.concatenate([predicted, labels]), return_inverse=True)
    # Python's integers: a product of four counts does not fit 64 bits.
    ours, theirs = (np.bincount(part, minlength=len(classes)).tolist() for part in np.split(numbers, 2))
    total, hits = len(labels), int(np.sum(predicted == labels))
    together = hits * total - sum(a * b for a, b in zip(ours, theirs, strict=True))
    spread = (total**2 - sum(a * a for a in ours)) * (total**2 - sum(b * b for b in theirs))
    return together / math.sqrt(spread) if spread else 0.0


def pearson(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Linear correlation of two series of numbers; NaN if one of them is constant."""
    x, y = (np.asarray(part, np.float64) for part in _paired(predicted, labels))
    if len(x) < 2 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    x, y = (_unit(part - part.mean()) for part in (x, y))
    return float(np.clip(x @ y, -1.0, 1.0))


def spearman(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Correlation of the ranks of two series, equal numbers sharing the mean of theirs; NaN if one is constant."""
    predicted, labels = _paired(predicted, labels)
    return pearson(ranks(predicted), ranks(labels))


def ranks(values: ArrayLike) -> np.ndarray:
    """Places from 1 in ascending order, equal values sharing the mean of their places: float64 [n]."""
    _, numbers, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[numbers]


def _unit(x: np.ndarray) -> np.ndarray:
    # Scaled twice: squares of very small or large numbers would vanish or overflow.
    x = x / np.abs(x).max()
    return x / np.linalg.norm(x)


def _paired(predicted: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = np.asarray(predicted), np.asarray(labels)
    if ours.shape != theirs.shape or ours.ndim != 1 or not len(ours):
        raise ValueError(f"predictions {ours.shape} and labels {theirs.shape}: give one of each for every example")
    if any(part.dtype.kind == "f" and np.isnan(part).any() for part in (ours, theirs)):
        raise ValueError("a prediction or label is NaN; has the model diverged?")
    return ours, theirs
