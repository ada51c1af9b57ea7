"""Assemble a run from its config: the blueprint, and the step, batches and evaluation of each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import jax
import optax
from jax.sharding import Mesh

from bertjax.config import Config, MeshConfig, ModelConfig, TrainingConfig, to_dict
from bertjax.config.skips import Skip, batch_number
from bertjax.input.feed import ENDLESS, Feed, open_feed
from bertjax.input.training_data import RunBatches, TrainingData
from bertjax.model.network import Params
from bertjax.parallel.mesh import mesh_sharing
from bertjax.parallel.sharding import local_rows, put_on_devices
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.run.hooks.early_stopping import Patience
from bertjax.run.metrics import ProgressColumn, progress_columns
from bertjax.runtime.processes import Processes
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training import objectives
from bertjax.training.evaluate import EvalStep, Evaluation, HeldOut, compute_baselines, make_eval_step, unigram_baseline
from bertjax.training.exchange import NO_FROZEN, Frozen
from bertjax.training.flops import Peak, device_peak
from bertjax.training.objectives import Batch
from bertjax.training.optimizer import make_optimizer
from bertjax.training.out_of_memory import explain_exhausted_memory
from bertjax.training.stages import (
    Stage,
    check_stages_divisible,
    make_stages,
    rows_are_packed,
    stage_at,
    stage_objectives,
    training_mesh,
)
from bertjax.training.state import Blueprint, TrainState, draw_blueprint
from bertjax.training.step import GradientMetrics, Metrics, TrainStep
from bertjax.training.step_programs import StepPrograms
from bertjax.training.teacher import Teacher, frozen_networks, put_teacher, stage_flops
from bertjax.training.unrolling import decide_unrolling

# The seed of pairs and masks in evaluation, so that the training seed does not change the evaluated rows.
HELD_OUT_SEED = 0x45564C

Step = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


@dataclass(frozen=True)
class RunStage(Stage):
    """A stage of a run with its train step, batches and evaluation."""

    train_step: TrainStep
    batches: RunBatches
    evaluation: Evaluation
    flops_per_token: float
    skips: tuple[Skip, ...] = ()  # batches of the run to leave out
    checked_step: Step | None = None  # `train_step` with checks for silent errors; None without checks

    @property
    def flops_per_step(self) -> float:
        """FLOPs of one step on all devices, padding included."""
        return self.flops_per_token * self.tokens_per_step

    def batch_number(self, step: int) -> int:
        """Number of the batch, counted from 0 in the stage, that a step of the run reads."""
        return batch_number(step, self.skips, self.start) - self.start

    def open_feed(self, mesh: Mesh, start: int, stop: int = ENDLESS) -> Feed:
        """Open the feed of this process's rows, from step `start` of the run up to step `stop`, excluded."""
        size = self.training.global_batch_size
        return open_feed(
            self.batches,
            start_step=start,
            stop_step=stop,
            batch_number=self.batch_number,
            global_batch_size=size,
            rows=local_rows(mesh, size),
            threads=self.data.threads,
        )

    @property
    def size(self) -> str:
        """Describe the size of a step, for messages."""
        return (
            f"{self.training.global_batch_size:,} rows of {self.data.sequence_length} tokens a step in "
            f"{self.training.microbatches} gradient accumulation step{'s' * (self.training.microbatches > 1)}"
        )


@dataclass(frozen=True)
class HeldOutText:
    """Evaluates on held-out text: all of it as `eval/...`, and each of several sources as `eval/source_N/...`."""

    step: EvalStep
    objectives: tuple[objectives.Objective, ...]
    sets: tuple[HeldOut, ...]  # all text, then each source that has enough documents
    unigram: tuple[float, float]  # entropy of the tokens, share of the most frequent token
    mask_id: int

    @property
    def baselines(self) -> dict[str, float]:
        """Figures of predictions without context, by their names in the log."""
        return self._baselines

    @cached_property
    def _baselines(self) -> dict[str, float]:
        facts = objectives.HeldOutFacts(*self.unigram, self.mask_id, self.sets[0].whole_batches)
        return compute_baselines(self.objectives, facts)

    def with_rows(self, rows: int) -> HeldOutText:
        """Return the same evaluation over `rows` rows."""
        counts = _rows_per_set(rows, len(self.sets))
        return replace(
            self, sets=tuple(held_out.with_rows(count) for held_out, count in zip(self.sets, counts, strict=True))
        )

    @property
    def batches(self) -> int:
        """Number of batches in all sets."""
        return sum(held_out.count for held_out in self.sets)

    def __call__(self, params: Params, go_on: Callable[[], bool] = lambda: True) -> dict[str, float]:
        """Return the figures by their names in the log; none as soon as `go_on` returns False."""
        figures: dict[str, float] = {}
        for held_out in self.sets:
            if not (set_figures := held_out.evaluate(self.step, params, self.objectives, go_on)):
                return {}
            figures |= set_figures
        return figures


@dataclass(frozen=True)
class Job:
    """An assembled run, ready for the loop."""

    config: Config
    mesh: Mesh
    blueprint: Blueprint
    optimizer: optax.GradientTransformation
    stages: tuple[RunStage, ...]
    tokenizer: Tokenizer
    metadata: dict
    peak: Peak
    doing: str = "pretraining"  # for the progress line
    progress_columns: tuple[ProgressColumn, ...] = ()
    memory_fit: str = ""  # the settings that were chosen so that a step fits into memory, and why
    patience: Patience | None = None
    # (step, held-out figures) -> a comment to print after the figures.
    remark: Callable[[int, Mapping[str, float]], str] = lambda step, figures: ""


def assemble(
    config: Config,
    content: TrainingData,
    *,
    only_at: int | None = None,
    teacher: Teacher | None = None,
    mesh: Mesh | None = None,
    gradient_metrics: GradientMetrics | None = None,
    processes: Processes | None = None,
) -> Job:
    """Assemble a run; with `only_at`, only the stage that contains this step.

    `teacher` is the model that `distillation.teacher` names. `mesh` defaults to the config's. `gradient_metrics` as in
    `make_train_step`. `execution.scan_unroll=auto` is resolved here, and `training.grad_accum_steps=auto` by all
    `processes` together. Raises ValueError naming the key, its value and what to do.
    """
    tokenizer = content.tokenizer
    config = replace(config, model=tokenizer.fit_model(config.model))
    mesh = training_mesh(config) if mesh is None else mesh
    stages = make_stages(config)
    teacher_model = None if teacher is None else teacher.model
    check_stages_divisible(config, mesh, stages if only_at is None else [stage_at(stages, only_at)], teacher_model)
    for stage in stages if only_at is None else ():
        size = stage.training.global_batch_size
        content.require_cached(stage.data, size, local_rows(mesh, size))
    optimizer = make_optimizer(config.optimizer)
    config = decide_unrolling(config, mesh, teacher_model)
    programs = StepPrograms(config, mesh, optimizer, teacher_model, gradient_metrics)
    config, memory_fit = programs.fit(processes)
    stages = make_stages(config)
    selection = stages if only_at is None else (stage_at(stages, only_at),)
    blueprint = programs.blueprint(config.execution)
    frozen = NO_FROZEN if teacher is None else put_teacher(teacher, blueprint, config)
    groups = [stage_objectives(config, stage) for stage in selection]
    unigram = unigram_baseline(content.held_out_text(), tokenizer.vocab_size)

    @cache
    def make_eval(model: ModelConfig, names: tuple[str, ...]) -> EvalStep:
        packed, stage_blueprint = rows_are_packed(config.data), blueprint.with_model(model)
        group = next(one for one, stage in zip(groups, selection, strict=True) if stage.training.objectives == names)
        sums = make_eval_step(stage_blueprint, group, packed=packed, deterministic=config.deterministic)
        return lambda params, batch, frozen=frozen: sums(params, batch, frozen)

    def make_run_stage(stage: Stage, group: tuple[objectives.Objective, ...]) -> RunStage:
        data, training, names = stage.data, stage.training, stage.training.objectives
        sets = held_out_sets(content.held_out(data, HELD_OUT_SEED, names), training, mesh)
        return RunStage(
            **vars(stage),
            train_step=replace(programs.step(config.execution, stage), frozen=frozen),
            batches=content.train(data, stage.seed, names, training.global_batch_size),
            evaluation=HeldOutText(make_eval(stage.model, names), group, tuple(sets), unigram, tokenizer.mask_id),
            flops_per_token=stage_flops(config, stage, teacher_model),
        )

    job = make_job(config, mesh, blueprint, optimizer, tokenizer, content.fingerprint, teacher)
    all_objectives = {objective.name: objective for group in groups for objective in group}.values()
    return replace(
        job,
        stages=tuple(map(make_run_stage, selection, groups)),
        progress_columns=progress_columns(all_objectives),
        memory_fit=memory_fit,
    )


def draw_networks(
    config: Config, mesh: Mesh, optimizer: optax.GradientTransformation, teacher: Teacher | None
) -> tuple[Blueprint, Frozen]:
    """Return the blueprint of a run's networks, and the weights of its frozen networks on the devices."""
    frozen = frozen_networks(None if teacher is None else teacher.model, mesh, config.execution)
    blueprint = draw_blueprint(config.model, optimizer, mesh, config.execution, frozen)
    return blueprint, NO_FROZEN if teacher is None else put_teacher(teacher, blueprint, config)


def make_job(
    config: Config,
    mesh: Mesh,
    blueprint: Blueprint,
    optimizer: optax.GradientTransformation,
    tokenizer: Tokenizer,
    data_fingerprint: str,
    teacher: Teacher | None,
) -> Job:
    """Return a job without stages, with the metadata of its checkpoints."""
    metadata = run_metadata(
        to_dict(config),
        tokenizer_fingerprint=tokenizer.fingerprint,
        data_fingerprint=data_fingerprint,
        mesh=mesh,
        teacher_digest="" if teacher is None else teacher.digest,
    )
    return Job(
        config,
        mesh,
        blueprint,
        optimizer,
        (),
        tokenizer,
        metadata,
        device_peak(mesh.devices.flat[0], config.execution.dtype),
    )


def held_out_sets(sets: Mapping[str, RunBatches], training: TrainingConfig, mesh: Mesh) -> list[HeldOut]:
    """The held-out batches of each set; the first set is all text, the others are its sources."""
    at_a_time = training.rows_at_a_time
    counts = _rows_per_set(training.eval_rows, len(sets))
    return [
        HeldOut(batches, mesh, rows, at_a_time, name)
        for rows, (name, batches) in zip(counts, sets.items(), strict=True)
    ]


def _rows_per_set(rows: int, sets: int) -> list[int]:
    return [rows] + [-(-rows // sets)] * (sets - 1)


def reschedule(job: Job, config: Config) -> Job:
    """Return the job with a config that differs only in length and periods, without compiling anything again."""
    stages = []
    for before, stage in zip(job.stages, make_stages(config), strict=True):
        evaluation = before.evaluation
        if stage.training.eval_rows != before.training.eval_rows:
            assert isinstance(evaluation, HeldOutText), "pretraining evaluates on held-out text"
            evaluation = evaluation.with_rows(stage.training.eval_rows)
        step = replace(before.train_step, schedule=stage.schedule())
        stages.append(replace(before, **vars(stage), train_step=step, evaluation=evaluation))
    metadata = job.metadata | {"config": to_dict(config)}
    return replace(job, config=config, stages=tuple(stages), metadata=metadata)


def evaluate_params(
    config: Config, content: TrainingData, params: Params, step: int, teacher: Teacher | None = None
) -> tuple[dict[str, float], dict[str, float]]:
    """Evaluate parameters as a run of this config would at `step`; returns the held-out figures and the baselines."""
    # The attention backend and the mesh of training may be unavailable here; neither is part of the model.
    config = replace(config, execution=replace(config.execution, attention="auto"), mesh=MeshConfig())
    mesh = mesh_sharing([stage_at(make_stages(config), step).training.rows_at_a_time])
    job = assemble(config, content, only_at=step, teacher=teacher, mesh=mesh)
    (stage,) = job.stages
    explained = explain_exhausted_memory(f"evaluating on {stage.size}", config, job.mesh, stage, of_a_recipe=False)
    with jax.set_mesh(job.mesh), explained:
        on_devices = put_on_devices(params, job.blueprint.shardings.params)
        return stage.evaluation(on_devices), stage.evaluation.baselines
