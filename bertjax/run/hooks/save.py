"""Save a checkpoint every `training.checkpoint_every` steps; files are written while training continues."""

from __future__ import annotations

from bertjax.model.parameters import named_arrays
from bertjax.run.callbacks import Callback, Figures
from bertjax.runtime.connections import STOPPED_EARLY
from bertjax.storage.progress import SIGNS
from bertjax.training.digest import compile_ahead


class Save(Callback):
    """Starts saves, and calls `on_save` on all hooks once a checkpoint is complete."""

    def __init__(self) -> None:
        self._being_written: dict[int, str] = {}  # step -> directory
        self._is_compiled = False

    def on_stage(self) -> None:
        """Record that all steps are saved: until the next step is compiled, a signal ends the run at once."""
        run = self.run
        self._wait()
        saved = f"stopped at step {run.step:,}, which is saved. To continue, run the same command again."
        run.processes.rest(saved if run.step else STOPPED_EARLY)

    def after_step(self, step: int) -> None:
        if not self._is_compiled:
            # After the step was compiled, so as not to compete with it; early, to be ready when a signal comes.
            compile_ahead(named_arrays(self.run.job.blueprint.state))
            self._is_compiled = True
        if self.run.is_due(self.run.stage.training.checkpoint_every):
            self.save()

    def save(self) -> None:
        """Start writing a checkpoint, once the previous one is complete."""
        run, step = self.run, self.run.step
        saving = SIGNS.doing(f"step {step:,}  saving a checkpoint")
        with run.times.measure("checkpoint"), run.processes.taking_time(), saving:
            for hook in run.hooks:
                hook.before_save(step)
            self._wait()
            if run.checkpoints.save(step, run.state, run.job.metadata):
                self._being_written[step] = str(run.checkpoints.directory / str(step))

    def on_log(self, step: int, figures: Figures) -> None:
        self._report_complete()

    def after_training(self) -> None:
        if self.run.is_stopping:
            self.save()
        self._wait()

    def _wait(self) -> None:
        with self.run.processes.taking_time():
            self.run.checkpoints.wait()
        self._report_complete()

    def _report_complete(self) -> None:
        if not self._being_written or self.run.checkpoints.is_saving:
            return
        for step in sorted(self._being_written.keys() & {*self.run.checkpoints.steps()}):
            directory = self._being_written.pop(step)
            for hook in self.run.hooks:
                hook.on_save(step, directory)
