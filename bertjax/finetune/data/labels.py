"""Labels by name and by number, and their weights in the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample


def label_set(examples: Sequence[TextExample]) -> tuple[str, ...]:
    """The labels of a training set, sorted. Raises ValueError, naming the first example, if there are not two."""
    labels = tuple(sorted({str(example.label) for example in examples if example.label is not None}))
    if len(labels) < 2:
        where = examples[0].where if examples else "no examples"
        what = f"all labels from here on are {labels[0]!r}" if labels else "no labels from here on"
        raise ValueError(f"{where}: {what}; a task needs two or more: is it the right column?")
    return labels


def label_numbers(examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
    """The index of each example's label in `labels`: int32 [n], -1 where it has none.

    Raises ValueError naming the line of the first label that is not among them.
    """
    numbers = {label: number for number, label in enumerate(labels)} | {None: -1}
    for example in examples:
        if example.label not in numbers:
            raise ValueError(f"{example.where}: label {example.label!r} is not one of {', '.join(labels)}; mend it")
    return np.array([numbers[example.label] for example in examples], np.int32)


def require_judgements(examples: Sequence[TextExample]) -> None:
    """Raise ValueError naming the line of the first label that is neither 0 nor 1: whether a passage is relevant."""
    for example in examples:
        if example.label not in (0, 1, None):
            raise ValueError(
                f"{example.where}: label {example.label!r} is neither 0 nor 1, whether the passage is relevant; mend it"
            )


def number_of(where: str, label: str) -> float:
    """The label of an example of regression. Raises ValueError naming the line if it is not a finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: label {label!r} is not a finite number, which regression needs; mend it")
    return number


def label_weights(task: TaskConfig, labels: Sequence[str], numbers: Callable[[], np.ndarray]) -> Sequence[float] | None:
    """The weight of each label in the loss: the config's, or such that every label counts the same; None if all are 1.

    `numbers` returns the index of every training label in `labels`. Raises ValueError where there are no labels, or not
    one weight for each.
    """
    given, balanced = task.class_weights, task.balanced
    if not given and not balanced:
        return None
    if given and balanced:
        raise ValueError(f"task.class_weights={given} and task.balanced=True: give one of them")
    if not labels:
        raise ValueError(
            f"{task.name}: task.class_weights and task.balanced (--balanced) are for tasks with labels; leave them out"
        )
    if balanced:
        counts = np.bincount(numbers(), minlength=len(labels))
        return (counts.sum() / (len(labels) * np.maximum(counts, 1))).tolist()
    if len(given) != len(labels) or min(given) < 0:
        raise ValueError(f"task.class_weights={given}: give one, 0 or more, for each label: {', '.join(labels)}")
    return given
