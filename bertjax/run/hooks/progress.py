"""Show the progress of the run: a bar, or lines with an ETA."""

from __future__ import annotations

import contextlib

from bertjax.run.callbacks import Callback, Figures
from bertjax.run.metrics import brief
from bertjax.storage.progress import LINE_EVERY, SIGNS

COMPILING = "compiling (about 20 s the first time)"
_FIRST_SIGN = 1.5 * LINE_EVERY  # seconds; a line with figures usually comes earlier
_STEPS_SILENT = 300.0  # seconds between progress lines while no figures are logged


class ShowProgress(Callback):
    """Counts steps on `run.progress` and shows the latest logged figures there; a context manager."""

    def __init__(self) -> None:
        self._stepping, self._compiling = contextlib.ExitStack(), contextlib.ExitStack()

    def on_stage(self) -> None:
        run, data = self.run, self.run.stage.data
        run.progress.restart()
        description = f"rows of {data.sequence_length} tokens; data pipeline: {run.feed.engine}"
        run.progress.note(f"from step {run.step:,}: {description}; {COMPILING}")
        self._stepping.close()
        self._stepping.enter_context(SIGNS.doing(run.progress.line, _FIRST_SIGN, _STEPS_SILENT))
        self._compiling.enter_context(SIGNS.doing(COMPILING))

    def after_step(self, step: int) -> None:
        self._compiling.close()
        self.run.progress.update()

    def on_log(self, step: int, figures: Figures) -> None:
        self.run.progress.update(0, brief(figures, self.run.job.progress_columns))

    def after_training(self) -> None:
        self.__exit__()

    def __enter__(self) -> ShowProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        self._compiling.close()
        self._stepping.close()
