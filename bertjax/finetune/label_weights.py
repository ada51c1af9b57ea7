"""How much each label counts in the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bertjax.config import TaskConfig


def label_weights(task: TaskConfig, labels: Sequence[str], numbers: Callable[[], np.ndarray]) -> Sequence[float] | None:
    """Those that the config gives, or by which every label counts the same; None if all are 1.

    `numbers` gives the place of every training label among `labels`. Raises ValueError where there are no labels, or
    the weights are not one for each.
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
