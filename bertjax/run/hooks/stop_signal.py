"""Stop at a signal: all processes after the same step."""

from __future__ import annotations

from bertjax.run.callbacks import Callback


class StopSignal(Callback):
    """Before every step, has the processes agree on whether to take it. `Save` saves the state once they do not."""

    def on_stage(self) -> None:
        self._first = self.run.step

    def before_step(self, step: int) -> None:
        # The first step must be compiled, and all work before it is saved: a signal may end the process meanwhile.
        if not self.run.processes.begin_unit(first=step == self._first):
            self.run.stop()
