"""End training once a held-out figure stops improving, and keep the weights of its best evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bertjax.run.callbacks import Callback, Figures
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.telemetry import logged_value


@dataclass(frozen=True)
class Patience:
    """A figure to maximise, and the number of evaluations without improvement after which to stop."""

    figure: str
    evaluations: int


class EarlyStopping(Callback):
    """Of equal evaluations the first is the best. Every process has the same figures, and so the same result."""

    every_process = True

    def __init__(self, patience: Patience, best: Checkpoints, past: Iterable[float]) -> None:
        """`best` holds the weights; `past` is the figure at the evaluations so far, in order, of a resumed run."""
        self._patience, self._checkpoints = patience, best
        self._best, self._without = -math.inf, 0
        for value in past:
            self._count(value)

    @property
    def is_final(self) -> bool:
        """Whether the run ends for lack of improvement."""
        return self._without >= self._patience.evaluations

    def on_start(self) -> None:
        if self.is_final:
            self.run.stop()

    def on_evaluation(self, step: int, figures: Figures) -> None:
        """Save the weights, in the background, if they are the best; before the log says that they were evaluated."""
        if self._count(figures[self._patience.figure]):
            for hook in self.run.hooks:
                hook.before_save(step)
            self._checkpoints.save(step, {"params": self.run.state.params}, self.run.job.metadata)
        if self.is_final:
            self.run.stop()

    def before_save(self, step: int) -> None:
        """Wait for the weights to be saved: a checkpoint of the run must not refer to best ones that are missing."""
        self._checkpoints.wait()

    def _count(self, value: float) -> bool:
        logged = logged_value(value)  # as a resumed run reads it
        value = math.nan if logged is None else logged
        better = value > self._best
        self._best, self._without = (value, 0) if better else (self._best, self._without + 1)
        return better
