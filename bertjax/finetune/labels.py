"""Labels by name and by number."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bertjax.finetune.examples import TextExample


def label_set(examples: Sequence[TextExample]) -> tuple[str, ...]:
    """The labels of a training set, sorted. Raises ValueError, naming the place, if there are not two."""
    labels = tuple(sorted({str(example.label) for example in examples if example.label is not None}))
    if len(labels) < 2:
        where = examples[0].where if examples else "no examples"
        what = f"all labels from here on are {labels[0]!r}" if labels else "no labels from here on"
        raise ValueError(f"{where}: {what}; a task needs two or more: is it the right column?")
    return labels


def label_numbers(examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
    """The place of each example's label among `labels`: int32 [n], -1 where it has none.

    Raises ValueError naming the place of the first label that is not among them.
    """
    numbers = {label: number for number, label in enumerate(labels)} | {None: -1}
    for example in examples:
        if example.label not in numbers:
            raise ValueError(f"{example.where}: label {example.label!r} is not one of {', '.join(labels)}; mend it")
    return np.array([numbers[example.label] for example in examples], np.int32)


def require_judgements(examples: Sequence[TextExample]) -> None:
    """Raise ValueError naming the place of the first label that is neither 0 nor 1: whether a passage is relevant."""
    for example in examples:
        if example.label not in (0, 1, None):
            raise ValueError(
                f"{example.where}: label {example.label!r} is neither 0 nor 1, whether the passage is relevant; mend it"
            )


def number_of(where: str, label: str) -> float:
    """A regression's label. Raises ValueError naming the place if it is no finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: label {label!r} is not a finite number, which regression needs; mend it")
    return number
