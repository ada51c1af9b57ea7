"""The trainer: a run from where it stands to its end, the loop over steps and what happens between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from bertjax.config import Config
from bertjax.input.feed import Feed, open_feed
from bertjax.input.training_data import TrainingData
from bertjax.model.bert import Params
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.training import checkpoint
from bertjax.training.evaluate import Baselines
from bertjax.training.flops import Peak
from bertjax.training.interrupt import Interrupt
from bertjax.training.job import Job, Rows, assemble
from bertjax.training.metrics import TOKENS_SEEN, StepMetrics
from bertjax.training.progress import Progress
from bertjax.training.run_directory import describe_run, own_directory
from bertjax.training.state import TrainState, init_state, state_of
from bertjax.training.telemetry import METRICS_FILE, Telemetry, open_telemetry, read_metrics
from bertjax.training.timesplit import TimeSplit

Say = Callable[[str], None]
Initial = Callable[[], Params]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `exit_code` is not 0 if a signal ended it early; then `evaluation` is empty."""

    config: Config
    step: int
    evaluation: dict[str, float]
    baselines: Baselines
    tokens: float  # real tokens trained on since step 0
    seconds: float  # wall time of this process's loop
    tokens_per_second: float  # while stepping
    mfu: float
    peak: Peak
    exit_code: int


def train(job: Job, say: Say, initial: Initial | None = None) -> Outcome:
    """Train from where the run stands to its last step, and evaluate; or until a signal asks to stop.

    `initial` makes the weights to start with if there is no checkpoint to go on from, and is called only then.
    Raises ValueError if a checkpoint cannot be used, RuntimeError when too many updates in a row were not finite.
    """
    training = job.config.training
    directory = job.config.directory
    with own_directory(directory), Interrupt() as interrupt, jax.set_mesh(job.mesh):
        saved = checkpoint.Checkpoints(
            directory / checkpoint.DIRECTORY, keep_last=training.keep_last, keep_every=training.keep_every
        )
        with saved:
            state = starting_state(job, saved, say, initial)
            # Only now, for a run that is refused must not touch what the directory says of the one that is there.
            if jax.process_index() == 0:
                describe_run(job.config, job.tokenizer)
            start = int(state.step)
            telemetry = open_telemetry(directory, start) if jax.process_index() == 0 else Telemetry([])
            progress = Progress(training.steps, "pretraining", initial=start, every=training.log_every)
            with telemetry, progress:
                return Loop(job, saved, telemetry, progress, interrupt, tokens_seen(directory)).run(state)


def starting_state(job: Job, saved: checkpoint.Checkpoints, say: Say, initial: Initial | None) -> TrainState:
    """The state to begin with. Order of precedence:

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
        return restored.state
    if initial is not None:
        params = jax.device_put(initial(), blueprint.shardings.params)
        make = jax.jit(lambda params: state_of(params, job.optimizer), out_shardings=blueprint.shardings)
        return make(params)
    return init_state(blueprint, config.model, job.optimizer, config.training.seed)


def tokens_seen(directory: Path) -> float:
    """Real tokens that the run's earlier processes had trained on, up to the step where this one begins."""
    path = directory / METRICS_FILE
    records = read_metrics(path) if path.exists() else []
    return max((record.get(TOKENS_SEEN, 0.0) for record in records), default=0.0)


class Loop:
    """The loop over steps, and what happens between them."""

    def __init__(
        self,
        job: Job,
        saved: checkpoint.Checkpoints,
        telemetry: Telemetry,
        progress: Progress,
        interrupt: Interrupt,
        tokens_before: float,
    ) -> None:
        self.job, self.saved, self.telemetry = job, saved, telemetry
        self.progress, self.interrupt = progress, interrupt
        self.metrics = StepMetrics(job.peak.flops * job.mesh.devices.size, tokens_before)
        self.times = TimeSplit()
        self.window_start = time.perf_counter()

    def run(self, state: TrainState) -> Outcome:
        """Stage after stage, until the end or a signal."""
        evaluation: dict[str, float] = {}
        for rows in self.job.stages:
            if int(state.step) < rows.stage.stop and self.interrupt.received is None:
                state, evaluation = self.run_stage(rows, state)
        last = self.job.stages[-1]
        step = int(state.step)
        if self.interrupt.received is not None:
            evaluation = {}
            self.log(step, settle=True)
            self.save(step, state)
        elif not evaluation:  # nothing was left to train
            evaluation = self.evaluate(last, step, state)
        self.saved.wait()
        return self.outcome(step, evaluation, last.baselines)

    def run_stage(self, rows: Rows, state: TrainState) -> tuple[TrainState, dict[str, float]]:
        """Step to the stage's end, which evaluates and saves, or until a signal; returns the last evaluation too."""
        stage, training = rows.stage, rows.stage.training
        self.metrics.begin(rows.flops_per_token)
        with open_feed(
            rows.batches,
            start_step=int(state.step) - stage.start,
            stop_step=stage.stop - stage.start,
            global_batch_size=training.global_batch_size,
            rows=local_rows(self.job.mesh, training.global_batch_size),
            threads=stage.data.threads,
        ) as feed:
            length = stage.data.sequence_length
            self.progress.note(
                f"from step {int(state.step):,}: rows of {length} tokens; batches come through {feed.engine}"
            )
            return self.step_through(rows, state, feed)

    def step_through(self, rows: Rows, state: TrainState, feed: Feed) -> tuple[TrainState, dict[str, float]]:
        """Take the batches in order. Between evaluations and saves nothing waits for the step just dispatched."""
        stage, training = rows.stage, rows.stage.training
        step, first = int(state.step), int(state.step)
        evaluation: dict[str, float] = {}

        def due(period: int) -> bool:
            return step % period == 0 or step == stage.stop

        while step < stage.stop and self.interrupt.received is None:
            with self.times.measure("input_wait"):
                local = next(feed)
            with self.times.measure("step"):
                batch = to_global(self.job.mesh, local, training.global_batch_size)
                state, metrics = rows.train_step(state, batch)
                self.metrics.add(metrics)
            step += 1
            if step == first + 1:
                self.log(step, settle=True)
            self.progress.update()
            pause = due(training.eval_every) or due(training.checkpoint_every)
            # Log before evaluating and saving: their time belongs to no step's rate, and what a checkpoint vouches
            # for has been logged when it is written.
            if due(training.log_every) or pause:
                self.log(step, settle=pause)
            if due(training.eval_every):
                evaluation = self.evaluate(rows, step, state)
            if due(training.checkpoint_every):
                self.save(step, state)
        return state, evaluation

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
        self.telemetry.write(step, figures | self.times.window() | self.times.goodput())
        self.progress.update(0, _brief(figures))
        skipped, limit = int(figures["train/skipped_in_a_row"]), self.job.config.training.max_skipped_updates
        if skipped >= limit:
            raise RuntimeError(
                f"step {step}: the last {skipped} updates had a gradient that is not finite and were skipped "
                f"(training.max_skipped_updates={limit}); the weights are those from before them. "
                "Lower optimizer.learning_rate, lengthen optimizer.warmup_steps, or set model.dtype to float32"
            )

    def evaluate(self, rows: Rows, step: int, state: TrainState) -> dict[str, float]:
        """Evaluate on the held-out batches and log it."""
        with self.times.measure("eval"):
            figures = rows.evaluate(self.job.eval_step, state.params, self.job.objectives)
        self.telemetry.write(step, figures | rows.baselines.metrics())
        self.progress.note(f"step {step:,}  held out  {_brief(figures)}")
        self.window_start = time.perf_counter()
        return figures

    def save(self, step: int, state: TrainState) -> None:
        """Start to write a checkpoint; the files are written while training goes on."""
        with self.times.measure("checkpoint"):
            self.saved.save(step, state, self.job.metadata)
        self.window_start = time.perf_counter()

    def outcome(self, step: int, evaluation: dict[str, float], baselines: Baselines) -> Outcome:
        """The run's figures for whoever called."""
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
            exit_code=self.interrupt.exit_code,
        )


def _brief(figures: dict[str, float]) -> str:
    """The figures a person watches, short."""
    shown = [
        ("loss", "mlm_loss", "{:.3f}"),
        ("mlm", "mlm_accuracy", "{:.1%}"),
        ("nsp", "nsp_accuracy", "{:.1%}"),
        ("tok/s", "perf/tokens_per_second", "{:,.0f}"),
    ]
    found = {name.split("/", 1)[1]: value for name, value in figures.items()} | figures
    return "  ".join(f"{label} {form.format(found[name])}" for label, name, form in shown if name in found)


def evaluate_params(
    config: Config, content: TrainingData, params: Params, step: int
) -> tuple[dict[str, float], Baselines]:
    """Held-out figures of given parameters, as a run of this config would measure them at `step`, and the baselines."""
    # Who computed the attention when the run was trained may not be had here, and is no part of the model.
    config = replace(config, model=replace(config.model, attention="auto"))
    job = assemble(config, content, only_at=step)
    (rows,) = job.stages
    with jax.set_mesh(job.mesh):
        placed = jax.device_put(params, job.blueprint.shardings.params)
        return rows.evaluate(job.eval_step, placed, job.objectives), rows.baselines
