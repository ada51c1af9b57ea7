"""Call the user's callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertjax.parallel.mesh import without_mesh
from bertjax.run.callbacks import Callback, Figures
from bertjax.run.loop import Outcome
from bertjax.runtime.processes import Processes


class UserCallbacks(Callback):
    """Calls callbacks outside the run's mesh, so that they may load and use other models."""

    def __init__(self, callbacks: Sequence[Callback], processes: Processes) -> None:
        self._callbacks = [callback for callback in callbacks if processes.first or callback.every_process]

    def on_start(self) -> None:
        for callback in self._callbacks:
            callback.run = self.run
        self._call(lambda callback: callback.on_start())

    def on_stage(self) -> None:
        self._call(lambda callback: callback.on_stage())

    def before_step(self, step: int) -> None:
        self._call(lambda callback: callback.before_step(step))

    def after_step(self, step: int) -> None:
        self._call(lambda callback: callback.after_step(step))

    def on_log(self, step: int, figures: Figures) -> None:
        self._call(lambda callback: callback.on_log(step, figures))

    def evaluation_figures(self, seconds: float) -> Figures:
        figures: dict[str, float] = {}
        self._call(lambda callback: figures.update(callback.evaluation_figures(seconds)))
        return figures

    def on_evaluation(self, step: int, figures: Figures) -> None:
        self._call(lambda callback: callback.on_evaluation(step, figures))

    def before_save(self, step: int) -> None:
        self._call(lambda callback: callback.before_save(step))

    def on_save(self, step: int, directory: str) -> None:
        self._call(lambda callback: callback.on_save(step, directory))

    def after_training(self) -> None:
        self._call(lambda callback: callback.after_training())

    def on_finish(self, outcome: Outcome) -> None:
        self._call(lambda callback: callback.on_finish(outcome))

    def _call(self, event: Callable[[Callback], None]) -> None:
        for callback in self._callbacks:
            before = self.run.stop_is_requested
            with without_mesh():
                event(callback)
            alone = self.run.processes.count > 1 and not callback.every_process
            if self.run.stop_is_requested and not before and alone:
                raise ValueError(
                    f"{type(callback).__name__} called run.stop() in one of {self.run.processes.count} processes; set "
                    "every_process = True in the class, so that all processes stop"
                )
