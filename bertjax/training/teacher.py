"""The frozen teacher of a run: its weights and their digest, its FLOPs, and its place among the step's networks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from bertjax.config import Config, ExecutionConfig, ModelConfig
from bertjax.families.registry import get_family
from bertjax.model.family_heads import HEADS
from bertjax.model.heads import VocabularyHead
from bertjax.model.network import Params
from bertjax.model.parameters import named_arrays
from bertjax.parallel.sharding import put_on_devices
from bertjax.training.exchange import Frozen
from bertjax.training.flops import expected_predictions, train_flops_per_token
from bertjax.training.objectives import OBJECTIVES, TEACHER, Objective, choose
from bertjax.training.out_of_memory import explain_exhausted_memory
from bertjax.training.stages import Stage, stage_objectives
from bertjax.training.state import Blueprint, FrozenNetwork, draw_frozen


@dataclass(frozen=True)
class Teacher:
    """A model to learn from. Its vocabulary and its padding are the run's."""

    model: ModelConfig
    params: Params  # NumPy float32

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the names, shapes and bits of all arrays, independent of the format they were read from."""
        hasher = hashlib.sha256()
        for name, array in sorted(named_arrays(self.params).items()):
            hasher.update(f"{name} {array.shape} {array.dtype}\n".encode())
            hasher.update(np.ascontiguousarray(array).data)
        return hasher.hexdigest()


def objectives_with_teacher(config: Config) -> Iterator[Objective]:
    """The objectives that need a teacher, from all stages of a run."""
    names = dict.fromkeys(name for stage_names in config.stage_objectives for name in stage_names)
    return (objective for objective in choose([*names]) if objective.teacher is not None)


def assumed_teacher(config: Config) -> ModelConfig | None:
    """The teacher that a plan or a benchmark assumes, without reading weights; None for a run without a teacher.

    It is the student with twice as many layers. If `model.teacher_width` is set, it is the published model of the
    student's family with this width and the student's number of heads. Raises ValueError if there is no such model.
    """
    if not any(objectives_with_teacher(config)):
        return None
    model = config.model
    if not model.teacher_width:
        return replace(model, num_hidden_layers=2 * model.num_hidden_layers)
    for preset in get_family(model.family).presets.values():
        if (preset.hidden_size, preset.num_attention_heads) == (model.teacher_width, model.num_attention_heads):
            return replace(preset, vocab_size=model.vocab_size, vocab_pad_multiple=model.vocab_pad_multiple)
    raise ValueError(
        f"model.teacher_width={model.teacher_width}: no published model of model.family={model.family!r} has this "
        f"width and model.num_attention_heads={model.num_attention_heads}, so the teacher's memory and time are unknown"
    )


def frozen_networks(
    teacher: ModelConfig | None, mesh: Mesh | AbstractMesh, execution: ExecutionConfig
) -> dict[str, FrozenNetwork]:
    """The frozen networks of a run: the teacher, if there is one."""
    return {} if teacher is None else {TEACHER: draw_frozen(teacher, mesh, execution)}


def put_teacher(teacher: Teacher, blueprint: Blueprint, config: Config) -> Frozen:
    """Load the teacher's weights onto the devices, as the `frozen` argument of the steps."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, blueprint.frozen[TEACHER].params)
    with explain_exhausted_memory("loading the teacher onto the devices", config, blueprint.mesh):
        return {TEACHER: put_on_devices(teacher.params, shardings)}


def stage_flops(config: Config, stage: Stage, teacher: ModelConfig | None) -> float:
    """FLOPs of training on one token of a stage: the model's, and the teacher's forward pass if an objective uses it.

    Token predictions count for each network whose vocabulary head is used by an objective.
    """
    objectives = stage_objectives(config, stage)
    predictions = expected_predictions(stage.data)
    if not any(objective.teacher for objective in objectives):
        teacher = None
    model_predicts = any(_predicts_tokens(objective.heads) for objective in objectives)
    teacher_predicts = any(objective.teacher and _predicts_tokens(objective.teacher.heads) for objective in objectives)
    return flops_of_networks(
        config.model,
        teacher,
        stage.data.sequence_length,
        predictions if model_predicts else 0.0,
        predictions if teacher_predicts else 0.0,
    )


def _predicts_tokens(heads: tuple[str, ...]) -> bool:
    return any(issubclass(HEADS[head], VocabularyHead) for head in heads)


def flops_of_networks(
    model: ModelConfig, teacher: ModelConfig | None, length: int, predictions: float = 0, teacher_predictions: float = 0
) -> float:
    """FLOPs of training on one token of a row of `length`, with each network's number of predictions in a row.

    A teacher only runs a forward pass, a third of the FLOPs of training.
    """
    teacher_flops = 0.0 if teacher is None else train_flops_per_token(teacher, length, teacher_predictions) / 3
    return train_flops_per_token(model, length, predictions) + teacher_flops


def check_teacher(config: Config) -> None:
    """Raise ValueError if an objective needs a teacher and the config names none, or the reverse.

    Also for `model.teacher_width` without an objective that projects vectors to it.
    """
    taught = [*objectives_with_teacher(config)]
    distilling, names = [objective.name for objective in taught], config.training.objectives
    if distilling and not config.distillation.teacher:
        raise ValueError(
            f"training.objectives={names}: {distilling[0]} needs a teacher, and distillation.teacher is empty; name a "
            "run, hf:DIR, hf:NAME or tf1:DIR"
        )
    projected = any(objective.teacher and objective.teacher.projected for objective in taught)
    if config.model.teacher_width and not projected:
        able = (name for name, objective in OBJECTIVES.items() if objective.teacher and objective.teacher.projected)
        raise ValueError(
            f"model.teacher_width={config.model.teacher_width} with training.objectives={names}: none of them projects "
            f"vectors to that width; add {' or '.join(able)}, or leave it 0"
        )
    able = [name for name, objective in OBJECTIVES.items() if objective.teacher is not None]
    if config.distillation.teacher and not distilling:
        raise ValueError(
            f"distillation.teacher={config.distillation.teacher!r} with training.objectives={names}: none of them "
            f"needs a teacher; add {', '.join(able[:-1])} or {able[-1]}, or leave the teacher out"
        )
