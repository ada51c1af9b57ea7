"""Recovery from loss spikes: go back to the checkpoint before the spike and skip its batches.

The mean loss of a window of the log is a spike if it lies `training.spike_deviations` robust deviations above the
median of the windows before it; the deviation is that of the usual change from one window to the next. The run then
goes back to the newest checkpoint before the window, repeats the steps up to it with the same bits, and skips the
window's batches. Skipped batches are a record of `training.skips`, which the run's config.json and every later
checkpoint contain, so that a resumed run, or a replayed step, reads the same batches. Which windows are spikes follows
from the log alone: a run that is killed before the record is saved finds the same spike again.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bertjax.config import TrainingConfig, to_dict
from bertjax.config.skips import Skip, batch_number, count_batches, parse_skips
from bertjax.input.training_data import RunBatches
from bertjax.run.callbacks import Callback, Figures
from bertjax.run.checkpoint import DIRECTORY, read_metadata, saved_steps
from bertjax.run.checkpoint_metadata import GIVEN_SKIPS, DamagedCheckpoint
from bertjax.run.job import Job
from bertjax.run.metrics import LOSS
from bertjax.runtime.processes import Processes
from bertjax.storage.remote import AnyPath, to_path
from bertjax.training.stages import Stage, stage_at

MOST = 10  # spikes skipped in one run; more need another learning rate
_LEVEL, _USUAL = 8, 20  # windows for the median, and for the usual change
_LOGGED = 50 * _USUAL  # lines of the log that have those windows; one is of part of a window, or has no finite loss
_FLOOR = 0.01  # least deviation, as a share of the median
_NORMAL = 1.4826  # times the median absolute deviation is the standard deviation of a normal distribution


class Window(NamedTuple):
    """Steps of a run and the mean of their losses."""

    first: int  # counted from 0
    stop: int
    loss: float


class Spike(Exception):
    """Ends the loop at a spike, so that the run continues from a checkpoint of its first step, or of one before."""

    def __init__(self, window: Window, median: float, deviations: float) -> None:
        self.window = window
        super().__init__(
            f"the mean loss of steps {window.first + 1:,} to {window.stop:,} is {window.loss:.3f}, {deviations:.1f} "
            f"deviations above the windows before it (median {median:.3f})"
        )


class SpikeWatch:
    """Looks for spikes in one stage after the other; in every process, with the same figures and the same result.

    A window ends where the run logs by its periods. A window cut by a signal or restart is reassembled.
    """

    def __init__(
        self,
        training: TrainingConfig,
        logged: Iterable[tuple[int, float | None]] = (),
        given: Sequence[str] = (),
    ) -> None:
        """`logged` are the steps and losses of the run's log so far, in order, at least the last `lines_needed`.

        `given` are the skips that no spike added.
        """
        self._limit = training.spike_deviations
        # Spikes at one step are one record, and a window has at most the steps of a log period.
        batches = count_batches(training.skips) - count_batches(given)
        self._spikes = max(len(training.skips) - len(given), -(-batches // training.log_every))
        self._logged = [(step, math.nan if loss is None else loss) for step, loss in logged]
        self._losses: list[float] = []  # of whole windows of the stage
        self._part: list[tuple[int, float]] = []  # (steps, mean loss) since the last whole window
        self._reached = 0

    @staticmethod
    def lines_needed(training: TrainingConfig) -> int:
        """The number of losses at the end of a run's log that a watch judges by: 0 if it looks for none."""
        return _LOGGED if training.spike_deviations else 0

    def look(self, stage: Stage, step: int, loss: float) -> None:
        """Take the mean loss of the steps since the last call, up to `step`.

        Raises Spike for one, and RuntimeError if too many have been skipped.
        """
        if not self._limit:
            return
        logged, self._logged = self._logged, []
        for at, value in (*logged, (step, float(f"{loss:.9g}"))):  # nine digits, like the log
            window = self._whole(stage, at, value)
            if window is not None and at == step:
                self._judge(window)
            if window is not None:
                self._losses.append(window.loss)

    def _whole(self, stage: Stage, step: int, loss: float) -> Window | None:
        """The window that the steps up to this one complete, if they do."""
        if self._reached <= stage.start < step:  # the first of the stage, which has other rows
            self._losses, self._part, self._reached = [], [], stage.start
        self._part.append((step - self._reached, loss))
        self._reached = step
        training = stage.training
        periods = training.log_every, training.eval_every, training.checkpoint_every
        if all(step % period for period in periods) and step not in (stage.start + 1, stage.stop):
            return None
        steps, part = sum(count for count, _ in self._part), self._part
        self._part = []
        return Window(step - steps, step, math.fsum(count * mean for count, mean in part) / steps)

    def _judge(self, window: Window) -> None:
        past = [loss for loss in self._losses if math.isfinite(loss)][-_USUAL:]
        if len(past) < _LEVEL:
            return
        median = statistics.median(past[-_LEVEL:])
        # Of changes from one window to the next, so that a steadily falling loss has no large deviation.
        changes = [abs(after - before) for before, after in itertools.pairwise(past)]
        spread = max(_NORMAL * statistics.median(changes), _FLOOR * abs(median))
        if not (deviations := (window.loss - median) / spread) > self._limit:
            return
        spike = Spike(window, median, deviations)
        if self._spikes >= MOST:
            raise RuntimeError(
                f"{spike}; {MOST} spikes have been skipped (training.skips), and skipping more rows does not "
                "help. Lower optimizer.learning_rate, or lengthen optimizer.warmup_steps"
            )
        raise spike


class SpikeRecovery(Callback):
    """Ends the loop at a spike by raising it; `train_job` then goes back and skips its batches."""

    def __init__(
        self, training: TrainingConfig, logged: Iterable[tuple[int, float | None]], given: Sequence[str]
    ) -> None:
        """`logged` and `given` as in `SpikeWatch`."""
        self._watch = SpikeWatch(training, logged, given)

    def on_log(self, step: int, figures: Figures) -> None:
        run = self.run
        try:
            self._watch.look(stage_at(tuple(stage.stage for stage in run.stages), step), step, figures[LOSS])
        except Spike:
            # Said before the run is closed and restored, which may take longer than any step.
            with run.processes.taking_time():
                run.checkpoints.wait()
            moment = "while it goes back before a loss spike; no checkpoint is lost"
            run.processes.rest(f"stopped {moment}. To continue, run the same command again.")
            raise


def skips_to_begin_with(job: Job, processes: Processes, say: Callable[[str], None]) -> tuple[str, ...]:
    """The config's `training.skips`, and those that the run's newest checkpoint records."""
    found = _recorded_skips(to_path(job.config.directory)) if processes.first else ((), ())
    config_skips = job.config.training.skips
    recorded, given = map(tuple, json.loads(processes.broadcast("skipped batches", json.dumps(found))))
    if set(recorded) <= set(config_skips):
        return config_skips
    # A spike moves later skips, so the checkpoint has the config's skips at other steps.
    known = () if given == config_skips else config_skips
    skips = tuple(sorted({*known, *recorded}, key=lambda skip: parse_skips([skip])))
    say(f"skipping the batches that the run's newest checkpoint records: training.skips={skips}")
    return skips


def with_skips(job: Job, skips: Sequence[str]) -> Job:
    """The job whose steps skip these batches. Raises ValueError as `parse_skips`."""
    config = replace(job.config, training=replace(job.config.training, skips=tuple(skips)))
    parsed = parse_skips(skips)
    stages = job.stages
    if parsed:
        stages = tuple(
            replace(run_stage, batches=SkippedBatches(run_stage.batches, parsed, run_stage.stage.start))
            for run_stage in stages
        )
    metadata = job.metadata | {"config": to_dict(config)}
    if skips != job.config.training.skips:
        metadata[GIVEN_SKIPS] = list(job.config.training.skips)
    return replace(job, config=config, stages=stages, metadata=metadata)


class SkippedBatches:
    """The batches of a stage without the skipped ones; otherwise as `batches`."""

    def __init__(self, batches: RunBatches, skips: Sequence[Skip], start: int) -> None:
        self.source, self._skips, self._start = batches, tuple(skips), start
        self.shares = batches.shares

    @property
    def rows_per_epoch(self) -> int:
        """As of `batches`."""
        return self.source.rows_per_epoch

    @property
    def estimated_rows(self) -> int:
        """As of `batches`."""
        return self.source.estimated_rows

    def release(self) -> None:
        """As of `batches`."""
        self.source.release()

    def number(self, step: int) -> int:
        """The number in the stage, from 0, of the batch that a step of it gets."""
        return batch_number(self._start + step, self._skips, self._start) - self._start

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Those rows of the batch that a step of the stage gets."""
        return self.source.batch(self.number(step), global_batch_size, rows)

    def spec(self, batch_size: int) -> Any:
        """Shape and dtype of every array of a batch of that many rows."""
        return self.source.spec(batch_size)


def _recorded_skips(directory: AnyPath) -> tuple[Sequence[str], Sequence[str]]:
    """`training.skips` of the run's newest readable checkpoint, and the skips that its config gave."""
    for step in reversed(saved_steps(directory)):
        try:
            metadata = read_metadata(directory / DIRECTORY / str(step))
        except DamagedCheckpoint:
            continue
        return metadata["config"]["training"]["skips"], metadata.get(GIVEN_SKIPS, ())
    return (), ()
