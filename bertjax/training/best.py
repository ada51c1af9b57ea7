"""Early stopping: which evaluation was the best, its weights kept, and when there is nothing more to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bertjax.model.network import Params
from bertjax.training.checkpoint import Checkpoints


@dataclass(frozen=True)
class Patience:
    """A figure of the evaluations, the higher the better, and how many in a row may bring no higher one."""

    figure: str
    evaluations: int


class Best:
    """Keeps the weights of the best evaluation so far, the first of equals. Every process has one and does the same."""

    def __init__(self, patience: Patience, saved: Checkpoints, past: Iterable[float]) -> None:
        """`past`: the figure at the evaluations so far, in order, of a run that goes on."""
        self._patience, self._saved = patience, saved
        self._best, self._without = -math.inf, 0
        for value in past:
            self._count(value)

    @property
    def is_final(self) -> bool:
        """Whether so many evaluations brought nothing better that the run ends."""
        return self._without >= self._patience.evaluations

    def offer(self, step: int, figures: Mapping[str, float], params: Params, metadata: Mapping[str, Any]) -> None:
        """Take the weights of an evaluation if it is the best; they are on their way to the disk then."""
        if self._count(figures[self._patience.figure]):
            self._saved.save(step, {"params": params}, metadata)

    def settle(self) -> None:
        """Wait for the weights to be kept: a checkpoint of the run must never know of a better one that is not."""
        self._saved.wait()

    def _count(self, value: float) -> bool:
        better = value > self._best
        self._best, self._without = (value, 0) if better else (self._best, self._without + 1)
        return better
