"""From logits to predictions, and from predictions to the figures of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bertjax.finetune.metrics import accuracy, f1, matthews, pearson, spearman


def predictions_of(kind: str, logits: np.ndarray) -> np.ndarray:
    """The predicted label of each example, int32 [n], of logits [n, labels]; of `regression` the number, float32 [n].

    Of `relevance` it is 1 where the logit [n, 1] says that it is likelier than not.

    Raises ValueError if a logit is not finite.
    """
    if not np.isfinite(logits).all():
        raise ValueError("a logit is not finite; has the model diverged?")
    if kind == "regression":
        return logits[:, 0].astype(np.float32)
    if kind == "relevance":
        return (logits[:, 0] > 0).astype(np.int32)
    return logits.argmax(-1).astype(np.int32)


def probabilities_of(logits: np.ndarray) -> np.ndarray:
    """The probability of each label: float64 [n, labels]."""
    scaled = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return scaled / scaled.sum(-1, keepdims=True)


def figures_of(metrics: Sequence[str], predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The figures called so, of predictions and labels by number: each [n]. Raises ValueError as `metrics` do."""
    return {name: _FIGURES[name](predicted, labels) for name in metrics}


def found_seconds(vectors: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """How often a first text's nearest second, of all pairs' [n, 2, D], is its own.

    Those of pairs that share a text with it, by their numbers int32 [n, 2], are left out, as in training.
    """
    nearest = []
    for number, ((first, _), own) in enumerate(zip(vectors, texts, strict=True)):
        shared = np.isin(texts, own).any(-1)
        shared[number] = False
        nearest.append(int(np.where(shared, -np.inf, vectors[:, 1] @ first).argmax()))
    return {"accuracy": accuracy(nearest, np.arange(len(vectors)))}


def macro_f1(predicted: np.ndarray, labels: np.ndarray) -> float:
    """The mean of the F1 of every class that is predicted or a label."""
    return float(np.mean([f1(predicted, labels, label) for label in np.union1d(predicted, labels)]))


_FIGURES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,  # of the second of two labels
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
