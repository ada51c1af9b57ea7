"""The trainer: puts a run together from its config, and the loop over its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import optax
from jax.sharding import Mesh

from bertjax.config import Config, to_dict, validate
from bertjax.input.batches import PairBatches
from bertjax.input.feed import Feed, open_feed
from bertjax.model.bert import Params
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.host_memory import keep_freed_memory
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import check_divisible, local_rows, to_global
from bertjax.text.store import TokenStore
from bertjax.text.tokenizer import WordPiece
from bertjax.training import checkpoint, objectives
from bertjax.training.compatibility import check_weights
from bertjax.training.evaluate import Baselines, HeldOut, unigram_baseline
from bertjax.training.flops import Peak, device_peak, train_flops_per_token
from bertjax.training.interrupt import Interrupt
from bertjax.training.metrics import TOKENS_SEEN, StepMetrics
from bertjax.training.optimizer import make_optimizer, make_schedule
from bertjax.training.progress import Progress
from bertjax.training.run_directory import describe_run, own_directory
from bertjax.training.state import Blueprint, TrainState, draw_blueprint, init_state, state_of
from bertjax.training.step import EvalStep, TrainStep, make_eval_step, make_train_step
from bertjax.training.telemetry import METRICS_FILE, Telemetry, open_telemetry, read_metrics
from bertjax.training.timesplit import TimeSplit

# Evaluation draws its pairs and masks under a seed of its own, so that no training seed changes what is measured.
HELD_OUT_SEED = 0x45564C

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """All that the loop needs, put together once."""

    config: Config
    mesh: Mesh
    blueprint: Blueprint
    optimizer: optax.GradientTransformation
    objectives: tuple[objectives.Objective, ...]
    train_step: TrainStep
    eval_step: EvalStep
    batches: PairBatches
    held_out: HeldOut
    baselines: Baselines
    tokenizer: WordPiece
    metadata: dict
    peak: Peak


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


def assemble(config: Config, store: TokenStore) -> Job:
    """Everything that can be wrong with a config is found here, before the first step.

    Raises ValueError naming the key, its value and what to do.
    """
    tokenizer = store.tokenizer()
    config = validate(replace(config, model=replace(config.model, vocab_size=tokenizer.vocab_size)))
    model, data, training = config.model, config.data, config.training
    mesh = make_mesh(config.mesh)
    check_divisible(mesh, model, training, padded_vocab_size(model))
    optimizer = make_optimizer(config.optimizer)
    blueprint = draw_blueprint(model, optimizer, mesh)
    chosen = objectives.choose(training.objectives)
    train_step = make_train_step(
        blueprint,
        chosen,
        optimizer,
        make_schedule(config.optimizer, training.steps),
        clip_norm=config.optimizer.clip_norm,
        grad_accum_steps=training.grad_accum_steps,
        dropout_seed=training.seed,
    )
    rows_at_a_time = training.global_batch_size // training.grad_accum_steps
    held_out = HeldOut(
        PairBatches(store.split("held_out"), tokenizer, data, HELD_OUT_SEED),
        mesh,
        training.eval_batches,
        rows_at_a_time,
    )
    return Job(
        config=config,
        mesh=mesh,
        blueprint=blueprint,
        optimizer=optimizer,
        objectives=chosen,
        train_step=train_step,
        eval_step=make_eval_step(blueprint, chosen),
        batches=PairBatches(store.split("train"), tokenizer, data, training.seed),
        held_out=held_out,
        baselines=Baselines(
            *unigram_baseline(store.split("held_out"), tokenizer.vocab_size), held_out.next_sentence_majority()
        ),
        tokenizer=tokenizer,
        metadata=checkpoint.run_metadata(
            to_dict(config),
            tokenizer_fingerprint=tokenizer.fingerprint,
            data_fingerprint=store.fingerprint,
            mesh=mesh,
        ),
        peak=device_peak(mesh.devices.flat[0]),
    )


def preflight(config: Config) -> Config:
    """Refuse at once what would otherwise be refused after hours of preparing text.

    Raises ValueError like `validate`, `make_mesh` and `check_divisible`.
    """
    config = validate(config)
    keep_freed_memory()
    objectives.choose(config.training.objectives)
    check_divisible(make_mesh(config.mesh), config.model, config.training, padded_vocab_size(config.model))
    return config


def describe(job: Job) -> str:
    """What the run is, in lines for the log: devices, sizes, corpus."""
    config, mesh = job.config, job.mesh
    parameters = sum(leaf.size for leaf in jax.tree.leaves(job.blueprint.state.params))
    padding = (padded_vocab_size(config.model) - config.model.vocab_size) * (config.model.hidden_size + 1)
    per_device = config.training.global_batch_size // config.training.grad_accum_steps // batch_shards(mesh)
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    rows = job.batches.rows_per_epoch
    epochs = config.training.steps * config.training.global_batch_size / rows
    return (
        f"mesh {axes} of {mesh.devices.flat[0].device_kind} ({mesh.devices.size} devices); peak {job.peak}\n"
        f"model: {parameters - padding:,} parameters; {per_device} rows a device at a time, "
        f"{config.training.grad_accum_steps} microbatch(es) a step\n"
        f"data: {rows:,} rows an epoch; {config.training.steps:,} steps are {epochs:.2f} epochs"
    )


def train(job: Job, say: Say) -> Outcome:
    """Train from where the run stands to its last step, and evaluate; or until a signal asks to stop.

    Raises ValueError if a checkpoint cannot be used, RuntimeError when too many updates in a row were not finite.
    """
    training = job.config.training
    directory = job.config.directory
    with own_directory(directory), Interrupt() as interrupt, jax.set_mesh(job.mesh):
        saved = checkpoint.Checkpoints(
            directory / checkpoint.DIRECTORY, keep_last=training.keep_last, keep_every=training.keep_every
        )
        with saved:
            state = starting_state(job, saved, say)
            # Only now, for a run that is refused must not touch what the directory says of the one that is there.
            if jax.process_index() == 0:
                describe_run(job.config, job.tokenizer)
            start = int(state.step)
            rows = local_rows(job.mesh, training.global_batch_size)
            feed = open_feed(
                job.batches,
                start_step=start,
                stop_step=training.steps,
                global_batch_size=training.global_batch_size,
                rows=rows,
                threads=job.config.data.threads,
            )
            say(f"batches come through {feed.engine}")
            telemetry = open_telemetry(directory, start) if jax.process_index() == 0 else Telemetry([])
            progress = Progress(training.steps, "pretraining", initial=start, every=training.log_every)
            with feed, telemetry, progress:
                return Loop(job, saved, telemetry, progress, interrupt, tokens_seen(directory)).run(state, feed)


def starting_state(job: Job, saved: checkpoint.Checkpoints, say: Say) -> TrainState:
    """The state to begin with. Order of precedence:

    1. The run's own newest checkpoint (`restore=previous`: the newest that verifies), so that the same command resumes.
    2. `init_from`: weights of another run at step 0, moments fresh.
    3. Fresh weights from the seed.
    """
    config, blueprint = job.config, job.blueprint
    restored = saved.restore(blueprint.state, job.metadata, config.restore)
    if restored is not None:
        for notice in restored.notices:
            say(notice)
        say(f"resuming {config.directory} at step {restored.step:,}")
        return restored.state
    if config.init_from:
        check_weights(checkpoint.read_metadata(config.init_from), job.metadata)
        params = checkpoint.restore_params(config.init_from, blueprint.state.params)
        say(f"starting from the weights of {config.init_from}")
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
        config = job.config
        self.job, self.saved, self.telemetry = job, saved, telemetry
        self.progress, self.interrupt = progress, interrupt
        predictions = min(config.data.max_predictions, config.data.mask_probability * config.data.sequence_length)
        self.flops_per_token = train_flops_per_token(config.model, config.data.sequence_length, predictions)
        self.metrics = StepMetrics(self.flops_per_token, job.peak.flops * job.mesh.devices.size, tokens_before)
        self.times = TimeSplit()
        self.window_start = time.perf_counter()

    def run(self, state: TrainState, feed: Feed) -> Outcome:
        """Step until the end or a signal. Between evaluations and saves nothing waits for the step just dispatched."""
        training = self.job.config.training
        step, first = int(state.step), int(state.step)
        evaluation: dict[str, float] = {}

        def due(period: int) -> bool:
            return step % period == 0 or step == training.steps

        while step < training.steps and self.interrupt.received is None:
            with self.times.measure("input_wait"):
                local = next(feed)
            with self.times.measure("step"):
                batch = to_global(self.job.mesh, local, training.global_batch_size)
                state, metrics = self.job.train_step(state, batch)
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
                evaluation = self.evaluate(step, state)
            if due(training.checkpoint_every):
                self.save(step, state)
        if self.interrupt.received is not None:
            self.log(step, settle=True)
            self.save(step, state)
        elif not evaluation:  # nothing was left to train
            evaluation = self.evaluate(step, state)
        self.saved.wait()
        return self.outcome(step, evaluation)

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

    def evaluate(self, step: int, state: TrainState) -> dict[str, float]:
        """Evaluate on the held-out batches and log it."""
        with self.times.measure("eval"):
            figures = self.job.held_out.evaluate(self.job.eval_step, state.params, self.job.objectives)
        self.telemetry.write(step, figures | self.job.baselines.metrics())
        self.progress.note(f"step {step:,}  held out  {_brief(figures)}")
        self.window_start = time.perf_counter()
        return figures

    def save(self, step: int, state: TrainState) -> None:
        """Start to write a checkpoint; the files are written while training goes on."""
        with self.times.measure("checkpoint"):
            self.saved.save(step, state, self.job.metadata)
        self.window_start = time.perf_counter()

    def outcome(self, step: int, evaluation: dict[str, float]) -> Outcome:
        """The run's figures for whoever called."""
        rate = self.metrics.rate
        peak = self.job.peak.flops * self.job.mesh.devices.size
        return Outcome(
            config=self.job.config,
            step=step,
            evaluation=evaluation,
            baselines=self.job.baselines,
            tokens=self.metrics.tokens,
            seconds=self.times.total()["wall"],
            tokens_per_second=rate,
            mfu=rate * self.flops_per_token / peak,
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


def evaluate_params(config: Config, store: TokenStore, params: Params) -> tuple[dict[str, float], Baselines]:
    """Held-out figures of given parameters, as a run of this config would measure them, and the baselines."""
    job = assemble(config, store)
    with jax.set_mesh(job.mesh):
        placed = jax.device_put(params, job.blueprint.shardings.params)
        return job.held_out.evaluate(job.eval_step, placed, job.objectives), job.baselines
