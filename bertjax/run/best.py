"""Early stopping: the best evaluation of a run by one figure, and its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bertjax.model.network import Params
from bertjax.run.checkpoint import Checkpoints


@dataclass(frozen=True)
class Patience:
    """A figure to maximise, and the number of evaluations without improvement after which to stop."""

    figure: str
    evaluations: int


class Best:
    """Keeps the weights of the best evaluation so far, the first of equals. Every process has one and does the same."""

    def __init__(self, patience: Patience, saved: Checkpoints, past: Iterable[float]) -> None:
        """`past`: the figure at the evaluations so far, in order, of a resumed run."""
        self._patience, self._saved = patience, saved
        self._best, self._without = -math.inf, 0
        for value in past:
            self._count(value)

    @property
    def is_final(self) -> bool:
        """Whether the run ends for lack of improvement."""
        return self._without >= self._patience.evaluations

    def offer(self, step: int, figures: Mapping[str, float], params: Params, metadata: Mapping[str, Any]) -> None:
        """Save the weights of an evaluation if it is the best, in the background."""
        if self._count(figures[self._patience.figure]):
            self._saved.save(step, {"params": params}, metadata)

    def settle(self) -> None:
        """Wait for the weights to be saved: a checkpoint of the run must not refer to a best one that is missing."""
        self._saved.wait()

    def _count(self, value: float) -> bool:
        better = value > self._best
        self._best, self._without = (value, 0) if better else (self._best, self._without + 1)
        return better
