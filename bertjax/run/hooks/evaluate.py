"""Evaluate on held-out rows every `training.eval_every` steps and at the end of a stage."""

from __future__ import annotations

import time

from bertjax.run.callbacks import Callback
from bertjax.run.job import RunStage
from bertjax.run.metrics import brief
from bertjax.storage.progress import SIGNS


class Evaluate(Callback):
    """Every process takes part and passes the same figures to all hooks."""

    def __init__(self) -> None:
        self._evaluated_step = -1

    def on_start(self) -> None:
        """Make up for an evaluation that was due at the resumed step but was interrupted by a signal."""
        run = self.run
        for stage in run.stages:
            if stage.start < run.step <= stage.stop and not run.past["evaluated"]:
                run.stage = stage
                if run.is_due(stage.training.eval_every):
                    self.evaluate(stage)

    def after_step(self, step: int) -> None:
        if self.run.is_due(self.run.stage.training.eval_every):
            self.evaluate(self.run.stage)

    def after_training(self) -> None:
        run = self.run
        if run.processes.stopped:
            run.evaluation = {}
        elif self._evaluated_step != run.step:  # no step was left, or a hook stopped the run
            run.stage = run.reached_stage
            self.evaluate(run.stage)

    def evaluate(self, stage: RunStage) -> None:
        """Measure and log the held-out figures, unless a signal interrupts.

        Figures that an earlier process of the run has logged for this step are not logged again.
        """
        run, batch_number, batches = self.run, 0, stage.evaluation.batches
        is_logged = run.past["evaluated"] and run.step == run.past["step"]

        def go_on() -> bool:
            nonlocal batch_number
            batch_number += 1
            return run.processes.begin_unit(doing="evaluation")

        with (
            run.times.measure("eval"),
            run.explain_out_of_memory("evaluating on", stage),
            run.progress.pause(),
            SIGNS.doing(lambda: f"step {run.step:,}  evaluating, batch {batch_number:,} of {batches:,}"),
        ):
            began = time.perf_counter()
            figures = stage.evaluation(run.state.params, go_on)
            seconds = time.perf_counter() - began
            for hook in run.hooks:
                figures |= {} if run.processes.stopped else hook.evaluation_figures(seconds)
        if run.processes.stopped:
            return
        run.evaluation, self._evaluated_step = figures, run.step
        if not is_logged:
            for hook in run.hooks:
                hook.on_evaluation(run.step, figures | stage.evaluation.baselines)
        remark = run.job.remark(run.step, figures)
        run.progress.note(f"step {run.step:,}  held out  {brief(figures, run.job.progress_columns)}{remark}")
