"""Stop all processes after the same step when one of them receives a signal."""

from __future__ import annotations

from bertjax.run.callbacks import Callback


class StopSignal(Callback):
    """Before every step, checks with the other processes whether to take it. If not, `Save` saves the state."""

    def on_stage(self) -> None:
        self._first = self.run.step

    def before_step(self, step: int) -> None:
        # All work before the first step is saved, so a signal may end the process while the step is compiled.
        if not self.run.processes.begin_unit(first=step == self._first):
            self.run.stop()
