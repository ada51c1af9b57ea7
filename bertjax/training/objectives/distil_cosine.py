"""Cosine distance between the last hidden states of student and teacher (Sanh et al. 2019, section 2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bertjax.config import ModelConfig
from bertjax.training.objectives.objective import (
    MODEL,
    TEACHER,
    Batch,
    Forward,
    Keys,
    Objective,
    Sums,
    TeacherRequirements,
    Unfit,
)

_EPSILON = 1e-12  # added to squared lengths, as PyTorch's CosineEmbeddingLoss does


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    s_BLD, t_BLD = (forward(batch, name).astype(jnp.float32) for name in (MODEL, TEACHER))
    squares = (jnp.sum(jnp.square(x), axis=-1) + _EPSILON for x in (s_BLD, t_BLD))
    inverse_s, inverse_t = map(jax.lax.rsqrt, squares)
    cosine = jnp.sum(s_BLD * t_BLD, axis=-1) * inverse_s * inverse_t
    return {"loss": jnp.sum((1 - cosine) * batch["distil_cosine_weights"])}


def _unfit(student: ModelConfig, teacher: ModelConfig) -> Unfit | None:
    ours, theirs = student.hidden_size, teacher.hidden_size
    if ours == theirs:
        return None
    return Unfit(f"its vectors are {theirs} wide and the model's {ours}", f"set model.hidden_size to {theirs}")


DISTIL_COSINE = Objective(
    name="distil_cosine",
    weight_key="distil_cosine_weights",
    sums=_sums,
    figures=("loss",),
    teacher=TeacherRequirements(unfit=_unfit),
)
