"""The frozen teacher of a run: its weights and what identifies them, and its place among the networks of the step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from bertjax.config import Config, ExecutionConfig, ModelConfig
from bertjax.model.network import Params
from bertjax.training.checkpoint import named_arrays
from bertjax.training.flops import train_flops_per_token
from bertjax.training.objectives import TEACHER, Objective, objectives_of
from bertjax.training.state import FrozenNetwork, draw_frozen


@dataclass(frozen=True)
class Teacher:
    """A model to learn from, whose vocabulary is the run's and is padded as the run's is."""

    model: ModelConfig
    params: Params  # NumPy float32

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the names, shapes and bits of all arrays: the same wherever they were read from."""
        found = hashlib.sha256()
        for name, array in sorted(named_arrays(self.params).items()):
            found.update(f"{name} {array.shape} {array.dtype}\n".encode())
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


def objectives_that_ask(config: Config) -> Iterator[Objective]:
    """The objectives of a run that ask a teacher."""
    return (objective for objective in objectives_of(config) if objective.teacher is not None)


def teacher_to_plan(config: Config) -> ModelConfig | None:
    """The teacher that a plan or a benchmark assumes, which reads no weights: the student with twice its layers.

    None for a run without a teacher.
    """
    if not any(objectives_that_ask(config)):
        return None
    return replace(config.model, num_hidden_layers=2 * config.model.num_hidden_layers)


def frozen_networks(
    teacher: ModelConfig | None, mesh: Mesh | AbstractMesh, execution: ExecutionConfig
) -> dict[str, FrozenNetwork]:
    """The frozen networks of a run with this teacher, or without one."""
    return {} if teacher is None else {TEACHER: draw_frozen(teacher, mesh, execution)}


def flops_of_teacher(teacher: ModelConfig | None, sequence_length: int, predictions: float) -> float:
    """FLOPs of asking the teacher about one token, a forward pass; the arguments as in `train_flops_per_token`."""
    return 0.0 if teacher is None else train_flops_per_token(teacher, sequence_length, predictions) / 3


def check_teacher(config: Config) -> None:
    """Raise ValueError if an objective asks a teacher and the config names none, or the other way round."""
    asking, told = [objective.name for objective in objectives_that_ask(config)], config.training.objectives
    if asking and not config.distillation.teacher:
        raise ValueError(
            f"training.objectives={told}: {asking[0]} asks a teacher, and distillation.teacher is empty; name a run, "
            "hf:DIR, hf:NAME or tf1:DIR"
        )
    if config.distillation.teacher and not asking:
        raise ValueError(
            f"distillation.teacher={config.distillation.teacher!r} with training.objectives={told}: none of them asks "
            "a teacher; add distil_mlm or distil_cosine, or leave the teacher out"
        )
