"""Gradients are clipped like tf.clip_by_global_norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
import pytest

from bertjax.training.optimizer import clip_factors


@pytest.mark.parametrize(("clip_norm", "factor"), [(1.0, 0.2), (5.0, 1.0), (10.0, 1.0), (0.0, 1.0)])
def test_gradients_are_only_scaled_down(clip_norm: float, factor: float) -> None:
    grads = {"encoder": {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}}
    factors = clip_factors(grads, optax.tree.norm(grads), clip_norm)
    assert [float(one) for one in jax.tree.leaves(factors)] == pytest.approx([factor, factor])
