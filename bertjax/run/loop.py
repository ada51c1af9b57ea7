"""The training loop: take a step, then call the hooks in order."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax

from bertjax.config import Config
from bertjax.input.feed import Feed, open_feed
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.job import Job, RunStage
from bertjax.run.metrics import StepMetrics, TimeSplit
from bertjax.run.progress import Progress
from bertjax.run.telemetry import Past
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes
from bertjax.storage.progress import SIGNS
from bertjax.training.flops import Peak
from bertjax.training.out_of_memory import settings_named
from bertjax.training.stages import stage_at
from bertjax.training.state import TrainState

if TYPE_CHECKING:
    from bertjax.run.callbacks import Callback


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `exit_code` is not 0 if a signal ended it early; then `evaluation` is empty."""

    config: Config
    step: int
    evaluation: dict[str, float]
    baselines: dict[str, float]
    tokens: float  # tokens trained on since step 0, without padding
    seconds: float  # wall time of this process's loop
    tokens_per_second: float  # while stepping
    mfu: float
    peak: Peak
    exit_code: int


class Run:
    """A run under way: what its hooks share. `state`, `metrics`, `step` and `stage` change as it goes on."""

    stage: RunStage
    feed: Feed

    def __init__(
        self,
        job: Job,
        processes: Processes,
        checkpoints: Checkpoints,
        progress: Progress,
        past: Past,
        hooks: Sequence[Callback],
        state: TrainState,
    ) -> None:
        self.job, self.config, self.stages, self.mesh = job, job.config, job.stages, job.mesh
        self.processes, self.checkpoints, self.progress, self.past = processes, checkpoints, progress, past
        self.hooks, self.state, self.step = tuple(hooks), state, int(state.step)
        self.last_step = self.stages[-1].stop
        self.metrics: dict[str, jax.Array] = {}  # of the last step
        self.unread = StepMetrics(job.peak.flops * job.mesh.devices.size, past["tokens"])
        self.times = TimeSplit()
        self.evaluation: dict[str, float] = {}  # the newest held-out figures
        self.added: dict[str, float | jax.Array] = {}
        self.stop_is_requested = False
        for hook in self.hooks:
            hook.run = self

    def stop(self) -> None:
        """End training after this step, with an evaluation, a checkpoint and all that follows the last step."""
        self.stop_is_requested = True

    @property
    def is_stopping(self) -> bool:
        """Whether no other step is taken: after `stop`, or a signal that all processes agreed on."""
        return self.stop_is_requested or self.processes.stopped

    def add_figures(self, figures: Mapping[str, float | jax.Array]) -> None:
        """Add figures to the next line of the log; names are `group/name`."""
        self.added |= figures

    def settle(self) -> None:
        """Wait for all dispatched steps."""
        with self.times.measure("step"):
            self.unread.drain()

    def is_due(self, period: int) -> bool:
        """Whether the period of the stage is due after this step, as everything is at the stage's end."""
        return self.step % period == 0 or self.step == self.stage.stop

    def explain_out_of_memory(self, doing: str, stage: RunStage) -> contextlib.AbstractContextManager[None]:
        """Raise OutOfMemory, naming the settings to change, if memory runs out inside."""

        def saved_steps() -> list[int]:
            self.checkpoints.wait()
            return self.checkpoints.steps()

        return settings_named(f"{doing} {stage.size}", self.config, self.mesh, stage.stage, saved_steps)

    @property
    def reached_stage(self) -> RunStage:
        """The stage of the last step; a run that is resumed with fewer steps is beyond its last stage."""
        return self.stages[stage_at(tuple(one.stage for one in self.stages), self.step).number]

    def outcome(self) -> Outcome:
        """The result of the run so far."""
        return Outcome(
            config=self.config,
            step=self.step,
            evaluation=self.evaluation,
            baselines=self.reached_stage.evaluation.baselines,
            tokens=self.unread.tokens,
            seconds=self.times.total()["wall"],
            tokens_per_second=self.unread.rate,
            mfu=self.unread.mfu,
            peak=self.job.peak,
            exit_code=self.processes.exit_code,
        )


def train(run: Run) -> Outcome:
    """Take the steps that are left. Between log lines, evaluations and saves the host waits for no dispatched step."""
    for hook in run.hooks:
        hook.on_start()
    temporaries = Temporaries()
    for stage in run.stages:
        if run.step >= stage.stop or run.is_stopping:
            continue
        run.stage = stage
        run.unread.begin(stage.flops_per_token)
        with run.explain_out_of_memory("training on", stage), _open_feed(run, stage) as run.feed:
            for hook in run.hooks:
                hook.on_stage()
            take_step = stage.checked_step or stage.train_step
            while run.step < stage.stop:
                for hook in run.hooks:
                    if not run.is_stopping:  # what later hooks prepare for a step is not for one that is never taken
                        hook.before_step(run.step)
                if run.is_stopping:
                    break
                with run.times.measure("input_wait"), run.processes.taking_time("input"):
                    local = next(run.feed)
                with run.times.measure("step"):
                    batch = to_global(run.mesh, local)
                    temporaries.reuse()
                    run.state, run.metrics = take_step(run.state, batch)
                    run.processes.mark_dispatched()
                    run.unread.add(run.metrics)
                run.step += 1
                for hook in run.hooks:
                    hook.after_step(run.step)
        stage.batches.release()
    for hook in run.hooks:
        hook.after_training()
    outcome = run.outcome()
    for hook in run.hooks:
        hook.on_finish(outcome)
    return outcome


def _open_feed(run: Run, stage: RunStage) -> Feed:
    size = stage.training.global_batch_size
    with SIGNS.doing("starting the data pipeline"):
        return open_feed(
            stage.batches,
            start_step=run.step - stage.start,
            stop_step=stage.stop - stage.start,
            global_batch_size=size,
            rows=local_rows(run.mesh, size),
            threads=stage.data.threads,
        )
