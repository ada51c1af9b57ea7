"""A task's data, read and encoded: what training text is to pretraining."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bertjax.finetune.rows import TaskRows

Figures = dict[str, float]


@dataclass(frozen=True)
class Split:
    """A development or test set, and what is done with the outputs of a network for its rows."""

    rows: TaskRows
    write: Callable[[Path, np.ndarray], Sequence[Path]]  # predictions into a folder, as files; gives the files
    figures: Callable[[np.ndarray], Figures] | None = None  # None where the right answers are not known


@dataclass(frozen=True)
class TaskContent:
    """All that a run asks of a task."""

    kind: str
    labels: tuple[str, ...]  # in the order of the outputs
    train: TaskRows
    dev: Mapping[str, Split]  # by name; a run is watched by the first
    test: Mapping[str, Split]
    metrics: tuple[str, ...]  # names of the figures, more is better; models are chosen by the first
    notes: tuple[str, ...] = ()  # what became of long examples, and whatever else is to be said
    baselines: Figures = field(default_factory=dict)  # figures of the first development set without a model
    measured_by: str = ""  # SHA-256 (hex) over all that figures and predictions of given weights depend on

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that training and development sets are to a run."""
        found = hashlib.sha256("\n".join((self.kind, *self.labels)).encode())
        for rows in (self.train, *(split.rows for split in self.dev.values())):
            for name, array in [("offsets", rows.offsets), *sorted((rows.tokens | rows.rows).items())]:
                found.update(f"{name} {array.dtype} {array.shape}".encode())
                found.update(np.ascontiguousarray(array))
        return found.hexdigest()
