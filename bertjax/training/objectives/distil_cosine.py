"""Directions of hidden states: 1 - cosine of the last vectors of student and teacher (Sanh et al. 2019, section 2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bertjax.training.objectives.objective import TEACHER, Batch, Forward, Keys, Objective, OfTeacher, Sums

_EPSILON = 1e-12  # added to squared lengths, as PyTorch's CosineEmbeddingLoss does


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    s_BLD, t_BLD = (forward(batch, *name).astype(jnp.float32) for name in ((), (TEACHER,)))
    squares = (jnp.sum(jnp.square(x), axis=-1) + _EPSILON for x in (s_BLD, t_BLD))
    inverse_s, inverse_t = map(jax.lax.rsqrt, squares)
    cosine = jnp.sum(s_BLD * t_BLD, axis=-1) * inverse_s * inverse_t
    return {"loss": jnp.sum((1 - cosine) * batch["distil_cosine_weights"])}


DISTIL_COSINE = Objective(
    name="distil_cosine",
    weight_key="distil_cosine_weights",
    sums=_sums,
    figures=("loss",),
    teacher=OfTeacher(same_width=True),
)
