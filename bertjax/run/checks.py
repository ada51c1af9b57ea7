"""Check a config before its text is prepared: objectives against networks, and settings against the machine."""

from __future__ import annotations

from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.families.registry import get_family, pretraining_heads
from bertjax.input.batches import batch_arrays
from bertjax.input.targets import registry as targets
from bertjax.model.attention.choice import AttentionChoice, choose_attention, compute_capability
from bertjax.model.network import PretrainingNetwork, check_head
from bertjax.run.hooks.profile import steps_to_profile
from bertjax.run.loggers import require_loggers
from bertjax.training import objectives
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import Stage, check_stages_divisible, make_stages, stage_objectives, training_mesh
from bertjax.training.teacher import check_teacher


def preflight(config: Config) -> Config:
    """Raise ValueError for an invalid config before text is prepared, which may take hours; returns the config."""
    require_loggers(config.log)
    stages = make_stages(config)
    steps_to_profile(config.profile, stages[-1].stop)
    make_optimizer(config.optimizer)
    for stage in stages:
        stage.schedule()
    for stage in stages:
        _check_heads(config, stage)
        _check_pairs(stage)
        _check_weights(stage)
    check_teacher(config)
    if check_head(config.model).of_task:
        raise ValueError(
            f"model.head={config.model.head!r} is a task's head; use {PretrainingNetwork.name!r} to pretrain"
        )
    check_machine(config)
    return config


def check_machine(config: Config) -> None:
    """Raise ValueError for a config that cannot run on the devices here.

    1. The mesh uses all devices, and divides the batches and the weights.
    2. The attention backend is available on them.
    3. Checks that compare bits require deterministic computation.
    """
    mesh, stages = training_mesh(config), make_stages(config)
    check_stages_divisible(config, mesh, stages)
    choose_stage_attention(config, mesh, stages)
    check_redundancy(config, mesh)


def check_redundancy(config: Config, mesh: Mesh) -> None:
    """Raise ValueError for checks that compare bits on devices where computation is not deterministic."""
    training, platform = config.training, mesh.devices.flat[0].platform
    keys = {"verify_every": training.verify_every, "digest_every": training.digest_every}
    for key, value in keys.items():
        if value and platform == "gpu" and not config.deterministic:
            raise ValueError(
                f"training.{key}={value} on a GPU with deterministic=False: it compares bits, which may differ between "
                "two computations there; add --deterministic, or set it to 0"
            )


def _check_heads(config: Config, stage: Stage) -> None:
    """Raise ValueError for unknown objectives, and for objectives whose head the family's networks lack."""
    heads, family = pretraining_heads(config.model), get_family(config.model.family)
    for objective in stage_objectives(config, stage):
        if lacking := [head for head in objective.heads if head not in heads]:
            advice = "; set model.generator_width" if family.generator and not config.model.generator_width else ""
            raise ValueError(
                f"{_setting(stage)} with model.family={family.name!r}: its networks have no {lacking[0]}, which "
                f"{objective.name} needs; they have {', '.join(heads)}{advice}"
            )


def _setting(stage: Stage) -> str:
    return f"training.objectives={stage.training.objectives}"


def _check_weights(stage: Stage) -> None:
    """Raise ValueError for an objective whose predictions are not in the rows of the stage."""
    keys = batch_arrays(stage.data, stage.training.objectives)
    for objective in objectives.choose(stage.training.objectives):
        if objective.weight_key not in keys:
            raise ValueError(
                f"{_setting(stage)}: {objective.name} needs the predictions of "
                f"{objective.weight_key.partition('_')[0]}; add that objective"
            )


def _check_pairs(stage: Stage) -> None:
    """Raise ValueError for an objective on sentence pairs if the rows or the model have no pairs."""
    pair_targets = targets.choose(stage.training.objectives).items()
    names = [name for name, target in pair_targets if target.pairing and target.pairing.has_labels]
    if names and stage.data.rows != "pairs":
        raise ValueError(
            f"data.rows={stage.data.rows!r} with {_setting(stage)}: such rows have no second segment; leave {names[0]} "
            "out"
        )
    if names and stage.model.causal:
        raise ValueError(
            f"{_setting(stage)} with model.causal=True: [CLS] attends only to itself, so it cannot predict how A and B "
            f"are related; leave {names[0]} out"
        )
    if names and stage.model.type_vocab_size == 1:
        raise ValueError(
            f"model.type_vocab_size=1 with {_setting(stage)}: the segments of a pair need two token types; set it to "
            f"2, or leave {names[0]} out"
        )


def choose_stage_attention(config: Config, mesh: Mesh, stages: tuple[Stage, ...]) -> list[AttentionChoice]:
    """Choose the attention backend of each stage. Raises ValueError like `choose_attention`."""
    device = mesh.devices.flat[0]
    return [
        choose_attention(
            stage.model,
            config.execution,
            device.platform,
            stage.data.sequence_length,
            stage.data.pair_slots > 1,
            compute_capability(device),
        )
        for stage in stages
    ]
