"""The stages of a run: ranges of steps with their own kind of rows; the optimizer state continues through all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import (
    Config,
    DataConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    StageConfig,
    TrainingConfig,
    validate,
)
from bertjax.families.registry import trained_networks
from bertjax.input.batches import batch_spec
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.mesh import BATCH_AXES, make_abstract_mesh, make_mesh, slice_numbers
from bertjax.parallel.sharding import check_divisible, check_rows_split, divided_sizes
from bertjax.training.objectives import OBJECTIVES, Objective, make_objectives
from bertjax.training.schedules import Schedule, make_schedule
from bertjax.training.state import Blueprint
from bertjax.training.step import GradientMetrics, TrainStep, make_train_step

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers


@dataclass(frozen=True)
class Stage:
    """Steps `start` to `stop` of a run, with their config and the steps of their schedule."""

    number: int  # from 0
    start: int
    stop: int
    data: DataConfig
    training: TrainingConfig
    optimizer: OptimizerConfig
    model: ModelConfig
    schedule_start: int  # first step of the schedule that the stage belongs to
    schedule_stop: int

    @property
    def seed(self) -> int:
        """Seed of the stage's pairs and masks; stages differ, so that they do not repeat each other's rows."""
        return self.training.seed + 0x9E3779B9 * self.number

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step, padding included."""
        return self.training.global_batch_size * self.data.sequence_length

    def schedule(self) -> Schedule:
        """The learning rate as a function of the run's step."""
        rate = make_schedule(self.optimizer, self.schedule_stop - self.schedule_start)

        return lambda step: rate(step - self.schedule_start)


AnyStage = TypeVar("AnyStage", bound=Stage)


def make_stages(config: Config) -> tuple[Stage, ...]:
    """Make and validate the stages of a run, in order: the config itself, then one for each of `config.stages`.

    The preflight check validates a run by this call; every stage must be valid for the steps of its schedule. Raises
    ValueError, like `validate`, if one is not.

    A stage inherits from the stage before it the values that it does not set. A schedule runs from the stage that sets
    a learning rate to the next one that does, or to the end.
    """
    edges, configs = _edges(config), [_apply_causality(config, "training.objectives")]
    for number, change in enumerate(config.stages):
        configs.append(_changed(configs[-1], change, f"stages.{number}"))
    schedule_edges = [0, *(c.start for c in config.stages if c.learning_rate is not None), config.training.steps]
    stages = []
    for number, (stage, start, stop) in enumerate(zip(configs, edges, edges[1:], strict=False)):
        first = max(edge for edge in schedule_edges if edge <= start)
        last = min(edge for edge in schedule_edges if edge >= stop)
        _validate_stage(replace(stage, training=replace(stage.training, steps=last - first)), number)
        stages.append(Stage(number, start, stop, stage.data, stage.training, stage.optimizer, stage.model, first, last))
    return tuple(stages)


def stage_step(
    config: Config,
    stage: Stage,
    blueprint: Blueprint,
    optimizer: optax.GradientTransformation,
    platform: str | None = None,
    objectives: tuple[Objective, ...] | None = None,
    gradient_metrics: GradientMetrics | None = None,
) -> TrainStep:
    """Make the train step of a stage, the same for a run and for a plan.

    `objectives` default to the stage's. With the objectives of a fine-tuning task, the shape of a batch decides whether
    it is packed.
    """
    return make_train_step(
        blueprint.with_model(stage.model),
        objectives or stage_objectives(config, stage),
        optimizer,
        stage.schedule(),
        clip_norm=config.optimizer.clip_norm,
        grad_accum_steps=stage.training.microbatches,
        dropout_seed=config.training.seed,
        packed=None if objectives else rows_are_packed(stage.data),
        platform=platform,
        deterministic=config.deterministic,
        gradient_metrics=gradient_metrics,
    )


def batch_shapes(stage: Stage, mesh: Mesh | AbstractMesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a stage's batch, with their shardings."""
    rows = NamedSharding(mesh, P(BATCH_AXES))
    spec = batch_spec(stage.data, stage.training.global_batch_size, stage.training.objectives)
    return {name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows) for name, (shape, dtype) in spec.items()}


def stage_objectives(config: Config, stage: Stage) -> tuple[Objective, ...]:
    """The objectives of a stage of a run. Raises ValueError as `make_objectives` does."""
    return make_objectives(replace(config, training=stage.training))


def rows_are_packed(data: DataConfig) -> bool:
    """Whether the rows of pretraining hold several sequences."""
    return data.packing != "none"


def stage_at(stages: Sequence[AnyStage], step: int) -> AnyStage:
    """The stage of the last step before the checkpoint of `step`, which is evaluated in it."""
    return next((stage for stage in stages if step <= stage.stop), stages[-1])


def as_of_stage(config: Config, step: int) -> Config:
    """The config with the model and objectives of the stage in which a checkpoint of `step` is evaluated.

    Stages may differ in rotation angles, in predicted tokens and in causality.
    """
    if not config.stages and not _causal_objectives(config.training.objectives):
        return config
    stage = stage_at(make_stages(config), step)
    names, weights = stage.training.objectives, stage.training.objective_weights
    training = replace(config.training, objectives=names, objective_weights=weights)
    return replace(config, model=stage.model, data=replace(config.data, predict=stage.data.predict), training=training)


def _edges(config: Config) -> list[int]:
    """The first step of each stage, and the end of the last one."""
    edges = [("the first step", 0), *((f"stages.{n}.start", stage.start) for n, stage in enumerate(config.stages))]
    edges.append(("training.steps", config.training.steps))
    for (before, start), (after, stop) in itertools.pairwise(edges):
        if start >= stop:
            raise ValueError(
                f"{after}={stop:,} is not after {before} ({start:,}); put the stages in order, each with a step or more"
            )
    return [step for _, step in edges]


def _changed(config: Config, change: StageConfig, name: str) -> Config:
    """The config of a stage, given the one before it."""
    schedule_changes = _changed_fields(change, "warmup_steps", "decay_steps", "final_share")
    optimizer = config.optimizer
    if change.learning_rate is not None:
        optimizer = replace(optimizer, learning_rate=change.learning_rate, **({"warmup_steps": 0} | schedule_changes))
    elif schedule_changes:
        key, value = next(iter(schedule_changes.items()))
        raise ValueError(f"{name}.{key}={value} requires a new schedule; give {name}.learning_rate as well")
    if change.rope_theta is not None and config.model.position_embedding != "rope":
        raise ValueError(
            f"{name}.rope_theta={change.rope_theta:g} with model.position_embedding="
            f"{config.model.position_embedding!r}: nothing is rotated; leave it out"
        )
    training = _changed_fields(change, "global_batch_size", "grad_accum_steps", "objectives", "objective_weights")
    if change.objectives is not None:
        training = {"objective_weights": ()} | training
    changed = replace(
        config,
        model=replace(config.model, **_changed_fields(change, "rope_theta")),
        data=change.changed_data(config.data),
        training=replace(config.training, **training),
        optimizer=optimizer,
    )
    if change.objectives is None:
        return changed
    bidirectional = replace(
        changed, model=replace(changed.model, causal=False), data=replace(changed.data, predict="masked")
    )
    return _apply_causality(bidirectional, f"{name}.objectives")


def _apply_causality(config: Config, key: str) -> Config:
    """Make attention causal if the objective requires it. Raises ValueError for a causal objective among others."""
    names = config.training.objectives
    if not (causal := _causal_objectives(names)):
        return config
    if len(names) > 1:
        raise ValueError(
            f"{key}={names}: {causal[0]} reads from left to right and the others do not; give it a separate stage"
        )
    return replace(config, model=replace(config.model, causal=True), data=replace(config.data, predict="next"))


def _causal_objectives(names: Sequence[str]) -> list[str]:
    """The names of causal objectives; kinds of fine-tuning tasks, which are among the names too, are not causal."""
    return [name for name in names if name in OBJECTIVES and OBJECTIVES[name].causal]


def _validate_stage(config: Config, number: int) -> None:
    """Validate the config of a stage; the message names the stage unless it is the first."""
    try:
        validate(config)
    except ValueError as error:
        if number == 0:
            raise
        raise ValueError(f"stages.{number - 1}: {error}") from error


def _changed_fields(change: StageConfig, *names: str) -> dict[str, Any]:
    return {name: getattr(change, name) for name in names if getattr(change, name) is not None}


def training_mesh(config: Config, devices: Sequence[Device] | None = None, slices: Sequence[int] | None = None) -> Mesh:
    """Make the mesh of a run; on TPUs, `mesh_of_tpus` chooses the sizes if the config sets none."""
    devices = jax.devices() if devices is None else devices
    mesh = config.mesh
    if mesh == MeshConfig() and devices[0].platform == "tpu":
        mesh = mesh_of_tpus(config, len(devices), len(set(slice_numbers(devices) if slices is None else slices)))
    return make_mesh(mesh, devices, slices)


def mesh_of_tpus(config: Config, devices: int, slices: int) -> MeshConfig:
    """Choose the mesh sizes for TPUs: `devices` of them in `slices` slices.

    Weights and moments are sharded over up to 8 devices, which share the update, a quarter of BERT-Large's step with
    2,048 tokens per chip: 46 ms become 33 ms in the compiler's schedule. The compiler scatters gradients only over a
    part of a slice; over a whole slice it sums them whole and then cuts them.

    If the rows of a step are not a multiple of the devices, several devices share the heads of the same rows
    (`tensor`), or, if the networks' sizes do not allow this, their tokens (`length`).
    """
    slice_size = devices // slices
    parts = devices // math.gcd(devices, *(stage.training.global_batch_size for stage in make_stages(config)))
    most, widths = math.gcd(16, slice_size) // 2 or 1, sharded_widths(config.model)
    fsdp = math.gcd(most, slice_size // parts, *widths)
    if math.gcd(parts, slice_size, *sharded_widths(config.model, "tensor")) == parts:
        return MeshConfig(fsdp=fsdp, tensor=parts)
    split = MeshConfig(fsdp=fsdp, length=parts)
    if slice_size % parts == 0 and rows_can_be_split(config, make_abstract_mesh(split, devices)):
        return split
    return MeshConfig(fsdp=math.gcd(most, slice_size, *widths))


def rows_can_be_split(config: Config, mesh: Mesh | AbstractMesh) -> bool:
    """Whether a mesh can split the rows of every stage of a run along `length`."""
    try:
        for stage, model in itertools.product(make_stages(config), trained_networks(config.model).values()):
            check_rows_split(mesh, model, stage.data.sequence_length)
    except ValueError:
        return False
    return True


def sharded_widths(model: ModelConfig, axis: str = "fsdp") -> list[int]:
    """The sizes in all trained networks' weights that this mesh axis must divide."""
    networks = trained_networks(model).values()
    divided = itertools.chain(*(divided_sizes(network, padded_vocab_size(network)) for network in networks))
    return [width for _, width, own in divided if own == axis]


def check_stages_divisible(
    config: Config, mesh: Mesh, stages: Sequence[Stage], teacher: ModelConfig | None = None
) -> None:
    """Check that a mesh can split each stage's batch and rows, and each network's weights, the `teacher`'s included.

    Raises ValueError as `check_divisible` and `check_rows_split` do.
    """
    networks = trained_networks(config.model) | ({} if teacher is None else {"teacher's": teacher})
    for stage, (whose, model) in itertools.product(stages, networks.items()):
        check_divisible(mesh, model, stage.training, padded_vocab_size(model), stage.number, whose)
        check_rows_split(mesh, model, stage.data.sequence_length, stage.number, whose)
