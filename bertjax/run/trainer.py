"""The trainer: resumes or starts a run, and loops over its steps, with logs, evaluations and saves between them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax

from bertjax.config import Config, MeshConfig
from bertjax.input.feed import Feed, open_feed
from bertjax.input.training_data import TrainingData
from bertjax.model.network import Params
from bertjax.model.parameters import named_arrays
from bertjax.parallel.mesh import mesh_sharing
from bertjax.parallel.sharding import local_rows, put_on_devices, to_global
from bertjax.run import checkpoint, checkpoint_metadata
from bertjax.run.best import Best, Patience
from bertjax.run.callbacks import Callback, Callbacks, RunStart
from bertjax.run.job import Job, Rows, assemble
from bertjax.run.loggers import openers
from bertjax.run.metrics import LOSS, StepMetrics, TimeSplit, brief
from bertjax.run.profile import DIRECTORY as PROFILE
from bertjax.run.profile import Profile, steps_to_profile
from bertjax.run.progress import Progress
from bertjax.run.redundancy import Redundancy
from bertjax.run.run_directory import describe_run, own_directory, require_shared
from bertjax.run.spikes import SpikeWatch, going_back, run_skipping_spikes
from bertjax.run.telemetry import Telemetry, logged_until, open_telemetry, past_of
from bertjax.run.time_budget import times_due
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes, alone
from bertjax.storage.progress import SIGNS
from bertjax.storage.remote import AnyPath, path_of
from bertjax.storage.remote_run import StagingDir
from bertjax.training.digest import compile_ahead
from bertjax.training.flops import Peak
from bertjax.training.out_of_memory import settings_named
from bertjax.training.stages import Stage, stage_at, stages_of
from bertjax.training.state import TrainState, init_state, state_of
from bertjax.training.teacher import Teacher

_COMPILING = "compiling the step, about 20 s the first time"
_EVALUATION = 1 / 3  # share of the time of a step with as many rows: an evaluation runs the forward pass only
_STEPS_SILENT = 300.0  # seconds between progress lines while no figures are logged

Say = Callable[[str], None]
Initial = Callable[[], Params]


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


def untrained(config: Config) -> Outcome:
    """The outcome of an untrained run, with which the report and export are rehearsed."""
    return Outcome(config, 0, {}, {}, 0.0, 0.0, 0.0, 0.0, Peak(0.0, ""), 0)


def train(
    job: Job,
    say: Say,
    initial: Initial | None = None,
    processes: Processes | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train from the newest checkpoint, or from step 0, to the last step, and evaluate; or until a signal.

    `initial` makes the initial weights, and is called only if there is no checkpoint. `processes` are those of the run,
    entered; by default this one trains alone. Process 0 calls the `callbacks`. Raises
    ValueError if a checkpoint cannot be used, RuntimeError after too many successive updates that were not finite,
    Stopped for a signal before the first step.
    """
    if processes is None:
        with alone() as processes:
            return train(job, say, initial, processes, callbacks)

    def run(job: Job, before: int | None) -> Outcome:
        return _run(job, say, initial, processes, callbacks, before)

    return run_skipping_spikes(job, processes, say, run)


def _run(
    job: Job,
    say: Say,
    initial: Initial | None,
    processes: Processes,
    callbacks: Sequence[Callback],
    before: int | None,
) -> Outcome:
    """`train`, from a checkpoint of step `before` or earlier if that is given, up to the first spike."""
    directory = path_of(job.config.directory)
    with own_directory(directory, job.config.data.cache_dir, processes.number) as staging:
        require_shared(directory, processes)
        training = job.config.training
        saved = checkpoint.Checkpoints(
            directory / checkpoint.DIRECTORY,
            keep_last=training.keep_last,
            keep_every=training.keep_every,
            staging=staging,
        )
        with jax.set_mesh(job.mesh), saved, contextlib.ExitStack() as log:
            explain_out_of_memory = settings_named(
                "making or restoring the state", job.config, job.mesh, saved=saved.steps
            )
            with explain_out_of_memory, SIGNS.doing("making the first state, or restoring it"):
                if before is not None:
                    saved.leave_out(before)
                state = starting_state(job, saved, say, initial)
            start = int(state.step)
            # Only now: a run that is refused must not change the files of the run in the directory.
            if processes.first and (notice := describe_run(job.config, job.tokenizer, staging)):
                say(notice)
            telemetry = Telemetry([])
            if processes.first:
                with SIGNS.doing("opening the logs"):
                    telemetry = open_telemetry(directory, start, loggers=openers(job.config), staging=staging)
            stream = sys.stderr if processes.first else log.enter_context(open(os.devnull, "w"))
            end = job.stages[-1].stage.stop
            progress = Progress(
                end,
                job.doing,
                initial=start,
                every=training.log_every,
                pauses_left=functools.partial(_evaluations_left, job.stages),
                pause_units=job.stages[0].evaluation.batches * _EVALUATION / training.grad_accum_steps,
                stream=stream,
            )
            traced = steps_to_profile(job.config.profile, end)
            profile = Profile(traced, start, directory / PROFILE, progress.note, processes.taking_time)
            with telemetry, progress, profile:
                logged = logged_until(directory, start) if processes.first else []
                figure = job.patience.figure if job.patience else ""
                past = past_of(logged, start, figure, SpikeWatch.lines_needed(training))
                past = json.loads(processes.gather("what was logged", json.dumps(past))[0])
                best = _best(job.patience, directory, past["figures"], staging, log) if job.patience else None
                notifier = Callbacks(callbacks if processes.first else ())
                notifier.notify(lambda one: one.on_start(RunStart(job.config.name, str(directory), start, end)))
                watch = SpikeWatch(training, past["losses"])
                loop = Loop(job, saved, best, telemetry, progress, profile, processes, watch, past["tokens"], notifier)
                return loop.run(state, evaluated=past["evaluated"])


def starting_state(job: Job, saved: checkpoint.Checkpoints, say: Say, initial: Initial | None) -> TrainState:
    """Return the initial state.

    Order of precedence:

    1. The run's own newest checkpoint (`restore=previous`: the newest that verifies), so that the same command resumes.
    2. `initial`: weights of another model (`init_from`) at step 0, moments fresh.
    3. Fresh weights from the seed.
    """
    config, blueprint = job.config, job.blueprint
    restored = saved.restore(blueprint.state, job.metadata, config.restore)
    if restored is not None:
        for notice in restored.notices:
            say(notice)
        say(f"resuming {config.directory} at step {restored.step:,}")
        if checkpoint_metadata.DRAWN in restored.metadata:  # the weights the run began with are not read again
            job.metadata[checkpoint_metadata.DRAWN] = restored.metadata[checkpoint_metadata.DRAWN]
        return restored.state
    if initial is not None:
        params = put_on_devices(initial(), blueprint.shardings.params)
        make = jax.jit(lambda params: state_of(params, job.optimizer), out_shardings=blueprint.shardings)
        return make(params)
    return init_state(blueprint, config.model, job.optimizer, config.training.seed)


def _best(
    patience: Patience, directory: AnyPath, past: list[float], staging: StagingDir | None, closing: contextlib.ExitStack
) -> Best:
    kept = closing.enter_context(checkpoint.Checkpoints(directory / checkpoint.BEST, keep_last=1, staging=staging))
    return Best(patience, kept, past)


class Loop:
    """The loop over steps, and what happens between them."""

    def __init__(
        self,
        job: Job,
        saved: checkpoint.Checkpoints,
        best: Best | None,
        telemetry: Telemetry,
        progress: Progress,
        profile: Profile,
        processes: Processes,
        watch: SpikeWatch,
        tokens_before: float,
        callbacks: Callbacks,
    ) -> None:
        self.callbacks, self.watch = callbacks, watch
        self.job, self.saved, self.best, self.telemetry = job, saved, best, telemetry
        self.progress, self.profile, self.processes = progress, profile, processes
        self.redundancy = Redundancy(job, processes)
        self.metrics = StepMetrics(job.peak.flops * job.mesh.devices.size, tokens_before)
        self.times = TimeSplit()
        self.temporaries = Temporaries()
        self.window_start = time.perf_counter()

    def run(self, state: TrainState, *, evaluated: bool) -> Outcome:
        """Run the stages until the end or a signal; `evaluated`: the log has an evaluation of the initial state."""
        start = int(state.step)
        evaluation = {} if evaluated else self.make_up(state)
        for rows in self.job.stages:
            if int(state.step) < rows.stage.stop and not self.processes.stopped and not self.is_final:
                with self.explain_out_of_memory(f"training on {_rows_of(rows)}", rows):
                    state, evaluation = self.run_stage(rows, state)
        last = self.job.stages[-1]
        step = int(state.step)
        if not evaluation and not self.processes.stopped:  # nothing was left to train
            evaluation = self.evaluate(last, step, state, is_logged=evaluated and step == start)
        if self.processes.stopped:
            evaluation, self.telemetry.ending = {}, "stopped"
            self.log(step, settle=True)
            self.save(step, state)
        with self.processes.taking_time():
            self.saved.wait()
        self.callbacks.look_for_checkpoints(self.saved)
        outcome = self.outcome(step, evaluation, last.evaluation.baselines)
        self.callbacks.notify(lambda one: one.on_end(outcome))
        return outcome

    def make_up(self, state: TrainState) -> dict[str, float]:
        """Run the evaluation that was due at the step where the run resumes, if a signal interrupted it."""
        step = int(state.step)
        for rows in self.job.stages:
            if rows.stage.start < step <= rows.stage.stop and _due(rows.stage.training.eval_every, step, rows.stage):
                return self.evaluate(rows, step, state)
        return {}

    def run_stage(self, rows: Rows, state: TrainState) -> tuple[TrainState, dict[str, float]]:
        """Train to the end of the stage, or until a signal; returns the state and the last evaluation."""
        stage, training = rows.stage, rows.stage.training
        self.metrics.begin(rows.flops_per_token)
        with SIGNS.doing("opening the feed of batches"):
            feed = open_feed(
                rows.batches,
                start_step=int(state.step) - stage.start,
                stop_step=stage.stop - stage.start,
                global_batch_size=training.global_batch_size,
                rows=local_rows(self.job.mesh, training.global_batch_size),
                threads=stage.data.threads,
            )
        with feed:
            description = f"rows of {stage.data.sequence_length} tokens; batches come through {feed.engine}"
            self.progress.note(f"from step {int(state.step):,}: {description}; {_COMPILING}")
            self.rest(int(state.step))
            with SIGNS.doing(self.progress.line, later_every=_STEPS_SILENT):
                return self.step_through(rows, state, feed)

    def step_through(self, rows: Rows, state: TrainState, feed: Feed) -> tuple[TrainState, dict[str, float]]:
        """Take the batches in order. Between evaluations and saves the host waits for no dispatched step."""
        stage, training = rows.stage, rows.stage.training
        step, first = int(state.step), int(state.step)
        evaluation: dict[str, float] = {}

        def due(period: int) -> bool:
            return _due(period, step, stage)

        while step < stage.stop and not self.is_final and self.processes.go_on(first=step == first):
            with self.profile.step(step, self.metrics.drain):
                with self.times.measure("input_wait"), self.processes.taking_time("input"):
                    local = next(feed)
                with self.times.measure("step"), _compiling(step == first):
                    batch = to_global(self.job.mesh, local)
                    self.temporaries.reuse()
                    state, metrics = self.redundancy.take(rows, step, state, batch)
                    self.processes.begun()
                    self.metrics.add(metrics)
            step += 1
            self.callbacks.notify(lambda one, step=step: one.on_step(step))
            if step == first + 1:
                self.time_from_here(step, is_logged=first == stage.start)
                # Now, so that it is compiled when a signal comes, and does not compete with compiling the step.
                compile_ahead(named_arrays(self.job.blueprint.state))
            self.progress.update()
            pause = due(training.eval_every) or due(training.checkpoint_every)
            # Log before evaluating and saving: rates must not include their time, and the steps of a checkpoint must be
            # logged before it is written.
            if due(training.log_every) or pause:
                self.log(step, settle=pause)
            if due(training.eval_every):
                evaluation = self.evaluate(rows, step, state)
            if due(training.checkpoint_every):
                self.save(step, state)
        return state, evaluation

    @property
    def is_final(self) -> bool:
        """Whether early stopping ends the run. All processes have the same figures, and so the same result."""
        return self.best is not None and self.best.is_final

    def rest(self, step: int) -> None:
        """Say that all steps are saved: a signal now, or while the next step is compiled, ends the run at once."""
        with self.processes.taking_time():
            self.saved.wait()
        self.callbacks.look_for_checkpoints(self.saved)
        where = f"at step {step:,}, which is saved" if step else "before the first step; nothing is lost"
        self.processes.begin(f"stopped by a signal {where}. To continue, run the same command again.")

    def time_from_here(self, step: int, *, is_logged: bool) -> None:
        """Exclude the first step, which was compiled, from all rates; only the first of a stage is logged by itself.

        The log of a run that was killed has the same windows as that of a run that was not.
        """
        if is_logged:
            self.log(step, settle=True)
            return
        with self.times.measure("step"):
            self.metrics.drain()
        self.window_start = time.perf_counter()

    def log(self, step: int, *, settle: bool) -> None:
        """Write the means over the steps finished since the last call; `settle` waits for all that were dispatched.

        Raises RuntimeError after `max_skipped_updates` updates in a row that were not finite.
        """
        if settle:
            with self.times.measure("step"):
                self.metrics.drain()
        elapsed = time.perf_counter() - self.window_start
        figures = self.metrics.window(elapsed)
        self.window_start = time.perf_counter()
        if not figures:
            return
        figures |= self.times.window() | self.times.goodput()
        self.telemetry.write(step, figures)
        self.callbacks.notify(lambda one: one.on_log(step, figures))
        self.callbacks.look_for_checkpoints(self.saved)
        self.progress.update(0, brief(figures, self.job.shown))
        skipped, limit = int(figures["train/skipped_in_a_row"]), self.job.config.training.max_skipped_updates
        if skipped >= limit:
            raise RuntimeError(
                f"step {step}: the last {skipped} updates had a gradient that is not finite and were skipped "
                f"(training.max_skipped_updates={limit}); the weights are those from before them. "
                "Lower optimizer.learning_rate, lengthen optimizer.warmup_steps, or set execution.dtype to float32"
            )

        if skipped:
            self.progress.note(
                f"Warning: step {step:,}: the last {skipped} update(s) had a gradient that is not finite and were "
                f"skipped; after {limit} in a row the run ends (training.max_skipped_updates)"
            )
        with going_back(self.processes, self.saved.wait):
            self.watch.look(stage_at(tuple(rows.stage for rows in self.job.stages), step), step, figures[LOSS])

    def evaluate(self, rows: Rows, step: int, state: TrainState, *, is_logged: bool = False) -> dict[str, float]:
        """Evaluate on the held-out batches and log the figures; empty if the run is stopped meanwhile.

        `is_logged`: an earlier process already logged them, then ended.
        """
        with self.times.measure("eval"), self.explain_out_of_memory(f"evaluating on {_rows_of(rows)}", rows):
            read, batches = 0, rows.evaluation.batches

            def go_on() -> bool:
                nonlocal read
                read += 1
                return self.processes.go_on(doing="evaluation")

            with (
                self.progress.pause(),
                SIGNS.doing(lambda: f"step {step:,}  evaluating, batch {read:,} of {batches:,}"),
            ):
                began = time.perf_counter()
                figures = rows.evaluation(state.params, go_on)
                if self.job.probe is not None and not self.processes.stopped:
                    figures |= self.job.probe(rows.stage, state.params, time.perf_counter() - began)
        if self.processes.stopped:
            return {}
        with_baselines = figures | rows.evaluation.baselines
        if not is_logged:
            if self.best is not None:
                self.redundancy.before_save(step, state)
                self.best.offer(step, figures, state.params, self.job.metadata)
            self.telemetry.write(step, with_baselines)
        self.callbacks.notify(lambda one: one.on_evaluation(step, with_baselines))
        remark = self.job.remark(step, figures)
        self.progress.note(f"step {step:,}  held out  {brief(figures, self.job.shown)}{remark}")
        self.window_start = time.perf_counter()
        return figures

    def save(self, step: int, state: TrainState) -> None:
        """Start to write a checkpoint; the files are written while training continues."""
        saving = SIGNS.doing(f"step {step:,}  saving a checkpoint")
        with self.times.measure("checkpoint"), self.processes.taking_time(), saving:
            self.redundancy.before_save(step, state)
            self.telemetry.publish()
            if self.best is not None:
                self.best.settle()
            self.saved.wait()
            self.callbacks.look_for_checkpoints(self.saved)
            if self.saved.save(step, state, self.job.metadata):
                self.callbacks.saving(step, str(self.saved.directory / str(step)))
        self.window_start = time.perf_counter()

    def explain_out_of_memory(self, doing: str, rows: Rows) -> contextlib.AbstractContextManager[None]:
        """Raise OutOfMemory, naming the settings to change, if memory runs out inside."""
        return settings_named(doing, self.job.config, self.job.mesh, rows.stage, self.steps_saved)

    def steps_saved(self) -> list[int]:
        """Steps that have a checkpoint, including one that is being written."""
        self.saved.wait()
        return self.saved.steps()

    def outcome(self, step: int, evaluation: dict[str, float], baselines: dict[str, float]) -> Outcome:
        """The result of the run."""
        return Outcome(
            config=self.job.config,
            step=step,
            evaluation=evaluation,
            baselines=baselines,
            tokens=self.metrics.tokens,
            seconds=self.times.total()["wall"],
            tokens_per_second=self.metrics.rate,
            mfu=self.metrics.mfu,
            peak=self.job.peak,
            exit_code=self.processes.exit_code,
        )


def _due(period: int, step: int, stage: Stage) -> bool:
    return step % period == 0 or step == stage.stop


def _compiling(first: bool) -> contextlib.AbstractContextManager[None]:
    return SIGNS.doing(_COMPILING) if first else contextlib.nullcontext()


def _evaluations_left(stages: tuple[Rows, ...], done: int) -> int:
    """The number of evaluations that remain after `done` steps."""
    left = [rows.stage for rows in stages if done < rows.stage.stop]
    return sum(times_due(stage.training.eval_every, max(done, stage.start), stage.stop, stage.stop) for stage in left)


def _rows_of(rows: Rows) -> str:
    training = rows.stage.training
    return (
        f"{training.global_batch_size:,} rows of {rows.stage.data.sequence_length} tokens a step in "
        f"{training.grad_accum_steps} microbatch(es)"
    )


def evaluate_params(
    config: Config, content: TrainingData, params: Params, step: int, teacher: Teacher | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Held-out figures of given parameters, as a run of this config would measure them at `step`, and the baselines."""
    # The attention back end and mesh of training may be unavailable here; neither is part of the model.
    config = replace(config, execution=replace(config.execution, attention="auto"), mesh=MeshConfig())
    mesh = mesh_sharing([stage_at(stages_of(config), step).training.rows_at_a_time])
    job = assemble(config, content, only_at=step, teacher=teacher, mesh=mesh)
    (rows,) = job.stages
    explained = settings_named(f"evaluating on {_rows_of(rows)}", config, job.mesh, rows.stage, of_a_recipe=False)
    with jax.set_mesh(job.mesh), explained:
        on_devices = put_on_devices(params, job.blueprint.shardings.params)
        return rows.evaluation(on_devices), rows.evaluation.baselines
