"""Stop training once a held-out figure stops improving, and keep the weights of the best evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bertjax.run.callbacks import Callback, Figures
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.telemetry import logged_value


@dataclass(frozen=True)
class Patience:
    """The figure to maximise, and the number of evaluations without improvement after which to stop."""

    figure: str
    evaluations: int


class EarlyStopping(Callback):
    """Among equal evaluations the first is the best. All processes have the same figures and decide alike."""

    every_process = True

    def __init__(self, patience: Patience, best: Checkpoints, past: Iterable[float]) -> None:
        """`best` stores the weights; `past` has the figures of a resumed run's evaluations so far, in order."""
        self._patience, self._checkpoints = patience, best
        self._best, self._unimproved = -math.inf, 0
        for value in past:
            self._record(value)

    @property
    def is_final(self) -> bool:
        """Whether to stop for lack of improvement."""
        return self._unimproved >= self._patience.evaluations

    def on_start(self) -> None:
        if self.is_final:
            self.run.stop()

    def on_evaluation(self, step: int, figures: Figures) -> None:
        """Save the best weights in the background, before the evaluation is logged."""
        if self._record(figures[self._patience.figure]):
            for hook in self.run.hooks:
                hook.before_save(step)
            self._checkpoints.save(step, {"params": self.run.state.params}, self.run.job.metadata)
        if self.is_final:
            self.run.stop()

    def before_save(self, step: int) -> None:
        """Wait until the best weights are saved, because a resumed run relies on them."""
        self._checkpoints.wait()

    def _record(self, value: float) -> bool:
        """Record an evaluation; returns whether it is better than all before."""
        logged = logged_value(value)  # rounded like the log, so that a resumed run decides alike
        value = math.nan if logged is None else logged
        better = value > self._best
        self._best, self._unimproved = (value, 0) if better else (self._best, self._unimproved + 1)
        return better
