"""The training loop: take a step, then call the hooks in order."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax

from bertjax.config import Config
from bertjax.input.feed import Feed
from bertjax.parallel.sharding import to_global
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.job import Job, RunStage
from bertjax.run.metrics import StepMetrics, TimeSplit
from bertjax.run.progress import Progress
from bertjax.run.telemetry import Past
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes
from bertjax.storage.progress import SIGNS
from bertjax.training.flops import Peak
from bertjax.training.out_of_memory import explain_exhausted_memory
from bertjax.training.stages import stage_at
from bertjax.training.state import TrainState

if TYPE_CHECKING:
    from bertjax.run.callbacks import Callback


@dataclass(frozen=True)
class Outcome:
    """The result of `train`. If a signal ended it early, `exit_code` is not 0 and `evaluation` is empty."""

    config: Config
    step: int
    evaluation: dict[str, float]
    baselines: dict[str, float]
    tokens: float  # trained on since step 0, without padding
    seconds: float  # wall time of the loop in this process
    tokens_per_second: float  # in steps alone, without evaluations and saves
    mfu: float
    peak: Peak
    exit_code: int
    first_step: int = 0  # at which this process began


class Run:
    """The state of the loop, shared by all hooks. `state`, `metrics`, `step` and `stage` change as it advances."""

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
        self.metrics: dict[str, jax.Array] = {}  # of the last step, on the devices
        self.step_metrics = StepMetrics(job.peak.flops * job.mesh.devices.size, past["tokens"])
        self.times = TimeSplit()
        self.evaluation: dict[str, float] = {}  # the newest held-out figures
        self.extra_figures: dict[str, float | jax.Array] = {}  # for the next line of the log
        self.stop_is_requested = False
        for hook in self.hooks:
            hook.run = self

    def stop(self) -> None:
        """End training after this step, like after the last one: evaluate, save, report."""
        self.stop_is_requested = True

    @property
    def is_stopping(self) -> bool:
        """Whether to take no further step: `stop` was called, or all processes agreed to stop at a signal."""
        return self.stop_is_requested or self.processes.stopped

    def add_figures(self, figures: Mapping[str, float | jax.Array]) -> None:
        """Add figures to the next line of the log; names have the form `group/name`."""
        self.extra_figures |= figures

    def settle(self) -> None:
        """Wait for all dispatched steps."""
        with self.times.measure("step"):
            self.step_metrics.drain()

    def is_due(self, period: int) -> bool:
        """Whether something with this period is due after the current step; at the end of a stage everything is."""
        return self.step % period == 0 or self.step == self.stage.stop

    def explain_out_of_memory(self, doing: str, stage: RunStage) -> contextlib.AbstractContextManager[None]:
        """If memory runs out inside, raise OutOfMemory naming the settings to change."""

        def saved_steps() -> list[int]:
            self.checkpoints.wait()
            return self.checkpoints.steps()

        return explain_exhausted_memory(f"{doing} {stage.size}", self.config, self.mesh, stage, saved_steps)

    @property
    def reached_stage(self) -> RunStage:
        """The stage of the current step; the last stage if the run was resumed with fewer steps than it has taken."""
        return stage_at(self.stages, self.step)

    def outcome(self) -> Outcome:
        """Return the result of the run so far."""
        return Outcome(
            config=self.config,
            step=self.step,
            evaluation=self.evaluation,
            baselines=self.reached_stage.evaluation.baselines,
            tokens=self.step_metrics.tokens,
            seconds=self.times.total()["wall"],
            tokens_per_second=self.step_metrics.rate,
            mfu=self.step_metrics.mfu,
            peak=self.job.peak,
            exit_code=self.processes.exit_code,
            first_step=self.past["step"],
        )


def train(run: Run) -> Outcome:
    """Take the remaining steps of all stages, and call the hooks around each.

    Steps are dispatched asynchronously: the host waits for the devices only to log, evaluate or save, and to stay at
    most two steps ahead of them (`StepMetrics.add`).
    """
    for hook in run.hooks:
        hook.on_start()
    temporaries = Temporaries()  # on a CPU, keeps the memory pages of one step for the next
    for stage in run.stages:
        if run.step >= stage.stop or run.is_stopping:
            continue
        run.stage = stage
        run.step_metrics.begin(stage.flops_per_token)
        with SIGNS.doing("starting the data pipeline"):
            run.feed = stage.open_feed(run.mesh, run.step, stage.stop)
        with run.explain_out_of_memory("training on", stage), run.feed:
            for hook in run.hooks:
                hook.on_stage()
            take_step = stage.checked_step or stage.train_step
            while run.step < stage.stop:
                for hook in run.hooks:
                    if not run.is_stopping:  # a hook may stop the run; later ones must not prepare for the step
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
                    run.step_metrics.add(run.metrics)
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
