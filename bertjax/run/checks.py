"""Check a run before its text is prepared: objectives against networks, and the config against the machine."""

from __future__ import annotations

from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.families.registry import get_family, pretraining_heads
from bertjax.input.batches import batch_keys
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
    """Refuse an invalid config before text is prepared, which may take hours.

    Raises ValueError.
    """
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
            f"model.head={config.model.head!r}: it is the head of a task; use {PretrainingNetwork.name!r} to pretrain"
        )
    check_machine(config)
    return config


def check_machine(config: Config) -> None:
    """Refuse a config that the devices here cannot run. Raises ValueError.

    1. The mesh has as many devices as there are, and divides the batches and the weights.
    2. The attention backend exists on them.
    3. Bits are compared only where they are the same in every run.
    """
    mesh, stages = training_mesh(config), make_stages(config)
    check_stages_divisible(config, mesh, stages)
    choose_stage_attention(config, mesh, stages)
    check_redundancy(config, mesh)


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


def _check_heads(config: Config, stage: Stage) -> None:
    """Refuse unknown objectives, and those whose head the family's networks lack."""
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
    """Refuse an objective whose predictions no rows of a stage contain."""
    keys = batch_keys(stage.data, stage.training.objectives)
    for objective in objectives.choose(stage.training.objectives):
        if objective.weight_key not in keys:
            raise ValueError(
                f"{_setting(stage)}: {objective.name} needs the predictions of "
                f"{objective.weight_key.partition('_')[0]}; add that objective"
            )


def _check_pairs(stage: Stage) -> None:
    """Refuse an objective of sentence pairs where rows or model have no pairs."""
    pair_targets = targets.choose(stage.training.objectives).items()
    names = [name for name, target in pair_targets if target.pairing and target.pairing.has_labels]
    if names and stage.data.rows != "pairs":
        raise ValueError(
            f"data.rows={stage.data.rows!r} with {_setting(stage)}: such rows have no second segment; leave {names[0]} "
            "out"
        )
    if names and stage.model.causal:
        raise ValueError(
            f"{_setting(stage)} with model.causal=True: [CLS] attends to itself alone, and cannot predict the relation "
            f"of A and B; leave {names[0]} out"
        )
    if names and stage.model.type_vocab_size == 1:
        raise ValueError(
            f"model.type_vocab_size=1 with {_setting(stage)}: the segments of a pair need two token types; set it to "
            f"2, or leave {names[0]} out"
        )


def choose_stage_attention(config: Config, mesh: Mesh, stages: tuple[Stage, ...]) -> list[AttentionChoice]:
    """The attention backend of each stage. Raises ValueError as `choose_attention` does."""
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
