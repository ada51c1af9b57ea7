"""Recover from loss spikes: go back to the checkpoint before the spike and skip its batches.

A window of the log is a spike if its mean loss lies `training.spike_deviations` robust deviations above the median of
the windows before it, where the deviation is the usual change from one window to the next. The run then returns to the
newest checkpoint before the window, repeats the steps up to it with the same bits, and skips the window's batches.
The skip is recorded in `training.skips`, in the run's config.json and in every later checkpoint, so that a resumed run
or a replayed step reads the same batches. Spikes are a function of the log alone: a run that is killed before the skip
is saved detects the same spike again.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from bertjax.config import TrainingConfig, to_dict
from bertjax.config.skips import count_batches, parse_skips
from bertjax.run.callbacks import Callback, Figures
from bertjax.run.checkpoint import read_newest_metadata
from bertjax.run.checkpoint_metadata import GIVEN_SKIPS
from bertjax.run.job import Job
from bertjax.run.metrics import LOSS
from bertjax.runtime.processes import Processes
from bertjax.training.stages import Stage, stage_at

MOST = 10  # spikes to skip in one run; more call for another learning rate
_LEVEL, _USUAL = 8, 20  # number of windows for the median, and for the usual change
_LOGGED = 50 * _USUAL  # lines of the log that surely contain these windows: some hold part of one or no finite loss
_FLOOR = 0.01  # least deviation, as a share of the median
_NORMAL = 1.4826  # standard deviation of a normal distribution / its median absolute deviation


class Window(NamedTuple):
    """Steps of a run and the mean of their losses."""

    first: int  # counted from 0
    stop: int
    loss: float


class Spike(Exception):
    """Raised at a spike to leave the loop; the run continues from a checkpoint at or before the window's first step."""

    def __init__(self, window: Window, median: float, deviations: float) -> None:
        self.window = window
        super().__init__(
            f"the mean loss of steps {window.first + 1:,} to {window.stop:,} is {window.loss:.3f}, {deviations:.1f} "
            f"deviations above the windows before it (median {median:.3f})"
        )


class SpikeWatch:
    """Detects spikes, stage by stage; all processes have the same figures and detect the same spikes.

    A window ends at a step where one of the stage's periods is due. A window that a signal or restart split is joined.
    """

    def __init__(
        self,
        training: TrainingConfig,
        logged: Iterable[tuple[int, float | None]] = (),
        config_skips: Sequence[str] = (),
    ) -> None:
        """`logged` has the steps and losses of the log so far, in order, at least the last `lines_needed`.

        `config_skips` are the skips in `training.skips` that no spike added.
        """
        self._limit = training.spike_deviations
        # Several spikes at one step share a record, and a window has at most `log_every` steps.
        batches = count_batches(training.skips) - count_batches(config_skips)
        self._spikes = max(len(training.skips) - len(config_skips), -(-batches // training.log_every))
        self._logged = [(step, math.nan if loss is None else loss) for step, loss in logged]
        self._losses: list[float] = []  # of complete windows of the stage
        self._part: list[tuple[int, float]] = []  # (steps, mean loss) since the last complete window
        self._reached = 0

    @staticmethod
    def lines_needed(training: TrainingConfig) -> int:
        """Number of losses at the end of the log that a watch needs; 0 if spike recovery is off."""
        return _LOGGED if training.spike_deviations else 0

    def look(self, stage: Stage, step: int, loss: float) -> None:
        """Add the mean loss of the steps since the last call, up to `step`.

        Raises Spike for a spike, or RuntimeError if too many have been skipped already.
        """
        if not self._limit:
            return
        logged, self._logged = self._logged, []
        for at, value in (*logged, (step, float(f"{loss:.9g}"))):  # nine digits, like the log
            window = self._complete_window(stage, at, value)
            if window is not None and at == step:
                self._judge(window)
            if window is not None:
                self._losses.append(window.loss)

    def _complete_window(self, stage: Stage, step: int, loss: float) -> Window | None:
        """Return the window that ends at this step, if any."""
        if self._reached <= stage.start < step:  # a new stage, whose losses are not comparable
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
        # From the changes between windows; the spread of the losses themselves is large while the loss falls.
        changes = [abs(after - before) for before, after in itertools.pairwise(past)]
        spread = max(_NORMAL * statistics.median(changes), _FLOOR * abs(median))
        if not (deviations := (window.loss - median) / spread) > self._limit:
            return
        spike = Spike(window, median, deviations)
        if self._spikes >= MOST:
            raise RuntimeError(
                f"{spike}; {MOST} spikes have been skipped (training.skips), and skipping more rows will not "
                "help. Lower optimizer.learning_rate, or lengthen optimizer.warmup_steps"
            )
        raise spike


class SpikeRecovery(Callback):
    """Raises Spike out of the loop; `train_job` then goes back and skips the spike's batches."""

    def __init__(
        self, training: TrainingConfig, logged: Iterable[tuple[int, float | None]], config_skips: Sequence[str]
    ) -> None:
        """`logged` and `config_skips` as in `SpikeWatch`."""
        self._watch = SpikeWatch(training, logged, config_skips)

    def on_log(self, step: int, figures: Figures) -> None:
        run = self.run
        try:
            self._watch.look(stage_at(run.stages, step), step, figures[LOSS])
        except Spike:
            with run.processes.taking_time():
                run.checkpoints.wait()
            # Closing and restoring the run may take longer than any step, and must not count as a hang.
            run.processes.rest(
                "stopped while going back to before a loss spike; no checkpoint is lost. To continue, run the same "
                "command again."
            )
            raise


def initial_skips(job: Job, processes: Processes, say: Callable[[str], None]) -> tuple[str, ...]:
    """Merge the config's `training.skips` with the skips in the run's newest checkpoint."""
    checkpoint_skips: tuple[Sequence[str], Sequence[str]] = (), ()
    if processes.first and (metadata := read_newest_metadata(job.config.directory)) is not None:
        checkpoint_skips = metadata["config"]["training"]["skips"], metadata.get(GIVEN_SKIPS, ())
    config_skips = job.config.training.skips
    recorded, original = map(tuple, json.loads(processes.broadcast("skipped batches", json.dumps(checkpoint_skips))))
    if set(recorded) <= set(config_skips):
        return config_skips
    # A spike renumbers later skips, so the checkpoint has the config's original skips at other steps.
    known = () if original == config_skips else config_skips
    skips = tuple(sorted({*known, *recorded}, key=lambda skip: parse_skips([skip])))
    say(f"skipping the batches that the run's newest checkpoint records: training.skips={skips}")
    return skips


def with_skips(job: Job, skips: Sequence[str]) -> Job:
    """Return the job with steps that skip these batches. Raises ValueError like `parse_skips`."""
    config = replace(job.config, training=replace(job.config.training, skips=tuple(skips)))
    parsed = parse_skips(skips)
    stages = tuple(replace(stage, skips=parsed) for stage in job.stages)
    metadata = job.metadata | {"config": to_dict(config)}
    if skips != job.config.training.skips:
        metadata[GIVEN_SKIPS] = list(job.config.training.skips)
    return replace(job, config=config, stages=stages, metadata=metadata)
