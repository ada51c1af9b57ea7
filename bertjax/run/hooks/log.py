"""Log the means over the steps since the last line, and the held-out figures."""

from __future__ import annotations

import time

from bertjax.run.callbacks import Callback, Figures
from bertjax.run.telemetry import Telemetry


class Log(Callback):
    """Writes to `telemetry`. Rates exclude evaluations, saves, and steps that were compiled."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._since: float | None = None  # when the first step since the last line began
        self._first = -1

    def on_stage(self) -> None:
        self._first = self.run.step

    def before_step(self, step: int) -> None:
        self._since = self._since or time.perf_counter()

    def after_step(self, step: int) -> None:
        stage, training = self.run.stage, self.run.stage.training
        if step == self._first + 1:
            # The first step of a stage gets its own line. The first step after a resume does not, so that the log has
            # the same windows as an uninterrupted run.
            if self._first == stage.start:
                self.log(settle=True)
            else:
                self.run.settle()
                self._since = None
        # Also before an evaluation or a save: the steps of a checkpoint must be in the log before it is written.
        pause = self.run.is_due(training.eval_every) or self.run.is_due(training.checkpoint_every)
        if pause or self.run.is_due(training.log_every):
            self.log(settle=pause)

    def log(self, *, settle: bool) -> None:
        """Write the means over the steps since the last line; `settle` first waits for all dispatched steps."""
        run = self.run
        if settle:
            run.settle()
        now = time.perf_counter()
        figures = run.step_metrics.window(now - (self._since or now))
        self._since = None if settle else now
        if not figures:
            return
        figures |= run.times.window() | run.times.goodput()
        figures |= {name: float(value) for name, value in run.extra_figures.items()}
        run.extra_figures = {}
        self._telemetry.write(run.step, figures)  # first, because a hook may fail
        for hook in run.hooks:
            hook.on_log(run.step, figures)

    def on_evaluation(self, step: int, figures: Figures) -> None:
        self._telemetry.write(step, figures)

    def before_save(self, step: int) -> None:
        self._telemetry.publish()

    def after_training(self) -> None:
        if self.run.processes.stopped:
            self._telemetry.ending = "stopped"
        self.log(settle=True)
