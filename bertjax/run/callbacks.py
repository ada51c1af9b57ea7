"""Callbacks: what `pretrain` and `finetune` report to a program during a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bertjax.parallel.mesh import without_mesh

if TYPE_CHECKING:
    from bertjax.run.checkpoint import Checkpoints
    from bertjax.run.trainer import Outcome

Figures = Mapping[str, float]  # by their names in the log: train/mlm_loss, perf/tokens_per_second, eval/mlm_loss


@dataclass(frozen=True)
class RunStart:
    """A run that is about to take its first step, or its next one if it was resumed."""

    name: str
    directory: str
    step: int  # that it resumes from; 0: it starts
    steps: int  # that it ends at


class Callback:
    """Override what you need; every method does nothing. Called in the process and thread that trains.

    Of several processes, only the first has callbacks. An exception in one ends the run like any other error: the
    checkpoints that are written stay, and the same call resumes from the newest.
    """

    def on_start(self, run: RunStart) -> None:
        """The state exists; the first step is not compiled yet."""

    def on_step(self, step: int) -> None:
        """A step was handed to the devices, which may still compute it. Called after every step: be quick."""

    def on_log(self, step: int, figures: Figures) -> None:
        """Every `training.log_every` steps: means over the steps that finished since the last call."""

    def on_evaluation(self, step: int, figures: Figures) -> None:
        """Every `training.eval_every` steps and at the end of a stage: the held-out figures and the baselines."""

    def on_checkpoint(self, step: int, directory: str) -> None:
        """The checkpoint of a step is complete. Files are written during training, so `step` is a past one."""

    def on_end(self, outcome: Outcome) -> None:
        """The last step was taken, or a signal ended the run early (`exit_code` is not 0 then)."""


class Callbacks:
    """All callbacks of a run, in their order, and the checkpoints that they have not been notified of yet."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self._callbacks = tuple(callbacks)
        self._being_written: dict[int, str] = {}

    def notify(self, event: Callable[[Callback], None]) -> None:
        """Call each: `notify(lambda callback: callback.on_step(step))`. They may load and use other models."""
        for callback in self._callbacks:
            with without_mesh():
                event(callback)

    def saving(self, step: int, directory: str) -> None:
        """The checkpoint of a step has begun to be written."""
        if self._callbacks:
            self._being_written[step] = directory

    def look_for_checkpoints(self, saved: Checkpoints) -> None:
        """Notify of those that are complete by now; does not wait."""
        if not self._being_written or saved.is_saving:
            return
        whole = self._being_written.keys() & {*saved.steps()}
        for step in sorted(whole):
            directory = self._being_written.pop(step)
            self.notify(lambda callback, step=step, directory=directory: callback.on_checkpoint(step, directory))
