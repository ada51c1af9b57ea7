"""Assembles a run from its config; an invalid config is refused here, before the first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bertjax.config import Config, ModelConfig, TrainingConfig, to_dict
from bertjax.families.registry import family_of, heads_of
from bertjax.input.batches import batch_keys
from bertjax.input.targets import registry as targets
from bertjax.input.training_data import RunBatches, TrainingData
from bertjax.model.attention.choice import AttentionChoice, choose_attention, compute_capability
from bertjax.model.encoder import embedding_width, padded_vocab_size
from bertjax.model.network import Params, PretrainingNetwork, check_head
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import local_rows, replicated
from bertjax.run.best import Patience
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.run.loggers import require_loggers
from bertjax.run.metrics import Shown, shown_of
from bertjax.run.profile import steps_to_profile
from bertjax.runtime.compilation import DETERMINISTIC
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training import objectives
from bertjax.training.evaluate import EvalStep, Evaluation, HeldOut, baselines_of, make_eval_step, unigram_baseline
from bertjax.training.exchange import Frozen
from bertjax.training.flops import Peak, device_peak
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import Stage, check_stages_divisible, rows_are_packed, stage_at, stage_step, stages_of
from bertjax.training.state import Blueprint, draw_blueprint
from bertjax.training.step import TrainStep
from bertjax.training.teacher import Teacher, check_teacher, flops_of_run, frozen_networks, put_teacher

# Evaluation has its own seed for pairs and masks, so that the training seed does not change the evaluated rows.
HELD_OUT_SEED = 0x45564C
_MOST_EPOCHS = 100  # without a warning; BERT was trained for 40

# Takes the stage, the parameters and the seconds that their evaluation took; more figures by their names in the log.
Probe = Callable[[Stage, Params, float], dict[str, float]]


@dataclass(frozen=True)
class Rows:
    """The train step of a stage, its rows, and its evaluation."""

    stage: Stage
    train_step: TrainStep
    batches: RunBatches
    evaluation: Evaluation
    flops_per_token: float


@dataclass(frozen=True)
class HeldOutText:
    """Held-out figures of all text as `eval/...`, and of each source as `eval/source_<n>/...`."""

    step: EvalStep
    objectives: tuple[objectives.Objective, ...]
    sets: tuple[HeldOut, ...]  # all text, then each of several sources that has enough documents
    unigram: tuple[float, float]  # entropy of the text's tokens, share of the most frequent one
    mask_id: int

    @cached_property
    def baselines(self) -> dict[str, float]:
        """Figures of predictions without context, by their names in the log."""
        facts = objectives.HeldOutFacts(*self.unigram, self.mask_id, self.sets[0].whole_batches)
        return baselines_of(self.objectives, facts)

    def of_rows(self, rows: int) -> HeldOutText:
        """The same over `rows` rows."""
        counts = _rows_of_sets(rows, len(self.sets))
        return replace(self, sets=tuple(one.of_rows(count) for one, count in zip(self.sets, counts, strict=True)))

    @property
    def batches(self) -> int:
        """Of all sets."""
        return sum(held_out.count for held_out in self.sets)

    def __call__(self, params: Params, go_on: Callable[[], bool] = lambda: True) -> dict[str, float]:
        """See `Evaluation`."""
        figures: dict[str, float] = {}
        for held_out in self.sets:
            if not (found := held_out.evaluate(self.step, params, self.objectives, go_on)):
                return {}
            figures |= found
        return figures


@dataclass(frozen=True)
class Job:
    """Everything that the loop needs."""

    config: Config
    mesh: Mesh
    blueprint: Blueprint
    optimizer: optax.GradientTransformation
    stages: tuple[Rows, ...]
    tokenizer: Tokenizer
    metadata: dict
    peak: Peak
    doing: str = "pretraining"  # for the progress line
    shown: tuple[Shown, ...] = ()
    patience: Patience | None = None
    probe: Probe | None = None
    # Takes a step and its held-out figures; returns a comment to print after them.
    remark: Callable[[int, Mapping[str, float]], str] = lambda step, figures: ""


def preflight(config: Config) -> Config:
    """Refuse an invalid config before text is prepared, which may take hours.

    Raises ValueError like `require_loggers`, `stages_of`, `steps_to_profile`, `make_mesh`, `check_divisible` and
    `choose_attention`.
    """
    require_loggers(config.log)
    stages = stages_of(config)
    steps_to_profile(config.profile, stages[-1].stop)
    make_optimizer(config.optimizer)
    for stage in stages:
        stage.schedule()
    _check_heads(config)
    _check_pairs(config, stages)
    _check_weights(config, stages)
    check_teacher(config)
    if check_head(config.model).of_task:
        raise ValueError(
            f"model.head={config.model.head!r}: it is the head of a task; use {PretrainingNetwork.name!r} to pretrain"
        )
    mesh = make_mesh(config.mesh)
    check_stages_divisible(config, mesh, stages)
    _attention(config, mesh, stages)
    check_redundancy(config, mesh)
    return config


def check_redundancy(config: Config, mesh: Mesh) -> None:
    """Refuse to compare bits where they need not be the same in every run. Raises ValueError."""
    training, platform = config.training, mesh.devices.flat[0].platform
    keys = {"verify_every": training.verify_every, "digest_every": training.digest_every}
    for key, value in keys.items():
        if value and platform == "gpu" and not config.deterministic:
            raise ValueError(
                f"training.{key}={value} on a GPU with deterministic=False: two computations need not have the same "
                "bits there; add --deterministic, or leave it 0"
            )


def assemble(
    config: Config,
    content: TrainingData,
    *,
    only_at: int | None = None,
    teacher: Teacher | None = None,
    mesh: Mesh | None = None,
) -> Job:
    """Assemble a run; with `only_at`, only the stage of that step. `teacher` is what `distillation.teacher` names.

    Without `mesh` it is that of the config. Raises ValueError naming the key, its value and what to do.
    """
    tokenizer = content.tokenizer
    config = replace(config, model=replace(config.model, vocab_size=tokenizer.vocab_size))
    stages = stages_of(config)
    taken = stages if only_at is None else (stage_at(stages, only_at),)
    mesh = make_mesh(config.mesh) if mesh is None else mesh
    check_stages_divisible(config, mesh, taken)
    optimizer = make_optimizer(config.optimizer)
    blueprint, frozen = draw_networks(config, mesh, optimizer, teacher)
    teacher_model = None if teacher is None else teacher.model
    trained = objectives.objectives_of(config)
    unigram = unigram_baseline(content.held_out_text(), tokenizer.vocab_size)

    @cache
    def eval_step_of(model: ModelConfig) -> EvalStep:
        packed, at_model = rows_are_packed(config.data), blueprint.with_model(model)
        sums = make_eval_step(at_model, trained, packed=packed, deterministic=config.deterministic)
        return lambda params, batch: sums(params, batch, *frozen)

    def rows_of(stage: Stage) -> Rows:
        data, training = stage.data, stage.training
        sets = held_out_sets(content.held_out(data, HELD_OUT_SEED), training, mesh)
        return Rows(
            stage,
            replace(stage_step(config, stage, blueprint, optimizer), frozen=frozen),
            content.train(data, stage.seed),
            HeldOutText(eval_step_of(stage.model), trained, tuple(sets), unigram, tokenizer.mask_id),
            flops_of_run(config, data, teacher_model),
        )

    job = make_job(config, mesh, blueprint, optimizer, tokenizer, content.fingerprint, teacher)
    return replace(job, stages=tuple(rows_of(stage) for stage in taken), shown=shown_of(trained))


def draw_networks(
    config: Config, mesh: Mesh, optimizer: optax.GradientTransformation, teacher: Teacher | None
) -> tuple[Blueprint, tuple[Frozen, ...]]:
    """The blueprint of a run's networks, and the weights of its frozen ones on the devices."""
    frozen = frozen_networks(None if teacher is None else teacher.model, mesh, config.execution)
    blueprint = draw_blueprint(config.model, optimizer, mesh, config.execution, frozen)
    return blueprint, () if teacher is None else (put_teacher(teacher, blueprint, config),)


def make_job(
    config: Config,
    mesh: Mesh,
    blueprint: Blueprint,
    optimizer: optax.GradientTransformation,
    tokenizer: Tokenizer,
    data_fingerprint: str,
    teacher: Teacher | None,
) -> Job:
    """A job without stages, with the metadata of its checkpoints."""
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
    """The held-out batches of all text, which is the first of the sets, then of each source."""
    at_a_time = training.rows_at_a_time
    counts = _rows_of_sets(training.eval_rows, len(sets))
    return [
        HeldOut(batches, mesh, rows, at_a_time, name)
        for rows, (name, batches) in zip(counts, sets.items(), strict=True)
    ]


def _rows_of_sets(rows: int, sets: int) -> list[int]:
    return [rows] + [-(-rows // sets)] * (sets - 1)


def rescheduled(job: Job, config: Config) -> Job:
    """The job with a config that differs in length and periods only; nothing is compiled again."""
    stages = []
    for rows, stage in zip(job.stages, stages_of(config), strict=True):
        evaluation = rows.evaluation
        if stage.training.eval_rows != rows.stage.training.eval_rows:
            assert isinstance(evaluation, HeldOutText), "pretraining evaluates on held-out text"
            evaluation = evaluation.of_rows(stage.training.eval_rows)
        step = replace(rows.train_step, schedule=stage.schedule())
        stages.append(replace(rows, stage=stage, train_step=step, evaluation=evaluation))
    metadata = job.metadata | {"config": to_dict(config)}
    return replace(job, config=config, stages=tuple(stages), metadata=metadata)


def describe(job: Job) -> str:
    """The devices, sizes and corpus of a run, as lines for the log."""
    config, mesh = job.config, job.mesh
    parameters = sum(leaf.size for leaf in jax.tree.leaves(job.blueprint.state.params))
    padding = (padded_vocab_size(config.model) - config.model.vocab_size) * (embedding_width(config.model) + 1)
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    lines = [
        f"mesh {axes} of {mesh.devices.flat[0].device_kind} ({mesh.devices.size} devices); peak {job.peak}",
        f"model: {parameters - padding:,} parameters",
        _describe_attention(_attention(config, mesh, tuple(rows.stage for rows in job.stages))),
        *_describe_deterministic(config, mesh),
    ]
    whole = replicated(job.blueprint.state.params, mesh)
    if whole.is_much:
        lines.append(f"Warning: {whole}")
    lines += _describe_sources(config.data.sources, job.stages[0].batches.shares)
    lines += [_describe_rows(rows, batch_shards(mesh)) for rows in job.stages]
    return "\n".join(filter(None, [*lines, epochs_warning(job)]))


def epochs_warning(job: Job) -> str:
    """A line about a run that reads its text too often, and what to change; empty for other runs."""
    epochs = [_epochs(rows) for rows in job.stages]
    if sum(epochs) <= _MOST_EPOCHS:
        return ""
    rows = job.stages[int(np.argmax(epochs))].batches.rows_per_epoch
    return f"Warning: {sum(epochs):,.0f} passes over {rows:,} rows; add text or lower --training.steps"


def _epochs(rows: Rows) -> float:
    stage = rows.stage
    return (stage.stop - stage.start) * stage.training.global_batch_size / rows.batches.rows_per_epoch


def describe_process(job: Job) -> str:
    """The devices and rows of this process, one of several, as a line for the log."""
    mesh, training = job.mesh, job.stages[0].stage.training
    rows = local_rows(mesh, training.global_batch_size)
    stretches = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)
    ranges = ", ".join(f"{stretch[0]}-{stretch[-1]}" for stretch in stretches)
    return (
        f"process {jax.process_index()}/{jax.process_count()}, {len(mesh.local_devices)}/{mesh.devices.size} devices, "
        f"reads rows {ranges} of each {training.global_batch_size}"
    )


def _describe_sources(sources: tuple[str, ...], shares: np.ndarray | None) -> list[str]:
    """The names of several sources in the log."""
    if len(sources) < 2:
        return []
    percentages = [""] * len(sources) if shares is None else [f", {share:.2%} of the tokens" for share in shares]
    return [f"source_{number}: {source}{percentages[number]}" for number, source in enumerate(sources)]


def _attention(config: Config, mesh: Mesh, stages: tuple[Stage, ...]) -> list[AttentionChoice]:
    """The back end of each stage's attention."""
    device = mesh.devices.flat[0]
    return [
        choose_attention(
            config.model,
            config.execution,
            device.platform,
            stage.data.sequence_length,
            stage.data.pair_slots > 1,
            compute_capability(device),
        )
        for stage in stages
    ]


def _describe_attention(choices: list[AttentionChoice]) -> str:
    """The attention back end and the reason for it, once if the stages agree."""
    return "attention: " + ", then ".join(dict.fromkeys(map(str, choices)))


def _describe_deterministic(config: Config, mesh: Mesh) -> list[str]:
    """How `deterministic` is fulfilled, if it is set."""
    if not config.deterministic:
        return []
    platform = mesh.devices.flat[0].platform
    names = [flag.name for flag in DETERMINISTIC.get(platform, ())]
    how = f"by {', '.join(names)}" if names else f"as every program on a {platform} is; no option is needed"
    return [f"deterministic: {how}"]


def _describe_rows(rows: Rows, shards: int) -> str:
    stage, training = rows.stage, rows.stage.training
    at_a_time = training.rows_at_a_time // shards
    return (
        f"steps {stage.start:,} to {stage.stop:,}: {training.global_batch_size:,} rows of "
        f"{stage.data.sequence_length} tokens a step, {at_a_time} a device at a time in {training.grad_accum_steps} "
        f"microbatch(es); {_epochs(rows):,.2f} epochs of {rows.batches.rows_per_epoch:,} rows"
    )


def _check_heads(config: Config) -> None:
    """Refuse unknown objectives, and those whose head the family's networks lack."""
    heads, family = heads_of(config.model), family_of(config.model.family)
    for objective in objectives.choose(config.training.objectives):
        if lacking := [head for head in objective.heads if head not in heads]:
            advice = "; set model.generator_width" if family.generator and not config.model.generator_width else ""
            raise ValueError(
                f"training.objectives={config.training.objectives} with model.family={family.name!r}: its networks "
                f"have no {lacking[0]}, which {objective.name} needs; they have {', '.join(heads)}{advice}"
            )


def _check_weights(config: Config, stages: tuple[Stage, ...]) -> None:
    """Refuse an objective whose predictions no rows of a stage contain."""
    made = [batch_keys(stage.data, config.training.objectives) for stage in stages]
    for objective in objectives.choose(config.training.objectives):
        if objective.weight_key not in made[0]:
            raise ValueError(
                f"training.objectives={config.training.objectives}: {objective.name} is about the predictions of "
                f"{objective.weight_key.partition('_')[0]}; add that objective"
            )


def _check_pairs(config: Config, stages: tuple[Stage, ...]) -> None:
    """Refuse an objective about sentence pairs where rows or model have none."""
    pair_targets = targets.choose(config.training.objectives).items()
    names = [name for name, target in pair_targets if target.pairing and target.pairing.has_labels]
    setting = f"training.objectives={config.training.objectives}"
    without = next((stage.data.rows for stage in stages if stage.data.rows != "pairs"), "")
    if names and without:
        raise ValueError(
            f"data.rows={without!r} with {setting}: such rows have no second segment; leave {names[0]} out"
        )
    if names and config.model.causal:
        raise ValueError(
            f"{setting} with model.causal=True: [CLS] attends to itself alone, and cannot predict the relation of A "
            f"and B; leave {names[0]} out"
        )
    if names and config.model.type_vocab_size == 1:
        raise ValueError(
            f"model.type_vocab_size=1 with {setting}: the segments of a pair need two token types; set it to 2, or "
            f"leave {names[0]} out"
        )
