"""Log the means of the steps since the last line, and held-out figures."""

from __future__ import annotations

import time

from bertjax.run.callbacks import Callback, Figures
from bertjax.run.telemetry import Telemetry


class Log(Callback):
    """Writes to `telemetry`. Rates cover steps alone: no evaluation, no save, and no step that was compiled."""

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
            # The first step of a stage has a line of its own. The first of a resumed process has none, so that its log
            # has the same windows as that of a run that was never stopped.
            if self._first == stage.start:
                self.log(settle=True)
            else:
                self.run.settle()
                self._since = None
        # Before an evaluation and a save, so that the steps of a checkpoint are logged before it is written.
        pause = self.run.is_due(training.eval_every) or self.run.is_due(training.checkpoint_every)
        if pause or self.run.is_due(training.log_every):
            self.log(settle=pause)

    def log(self, *, settle: bool) -> None:
        """Write the means over the steps since the last line; `settle` waits for all that were dispatched."""
        run = self.run
        if settle:
            run.settle()
        now = time.perf_counter()
        figures = run.unread.window(now - (self._since or now))
        self._since = None if settle else now
        if not figures:
            return
        figures |= run.times.window() | run.times.goodput()
        figures |= {name: float(value) for name, value in run.added.items()}
        run.added = {}
        self._telemetry.write(run.step, figures)  # before a hook that fails
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
