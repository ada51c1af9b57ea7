"""What a layer keeps for its backward pass."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.layers import ACTIVATIONS, FeedForward


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_of_the_wide_arrays_only_what_is_activated_is_kept(activation: str) -> None:
    config = ModelConfig(
        vocab_size=32, hidden_size=16, num_attention_heads=2, intermediate_size=64, hidden_act=activation
    )
    graphdef, weights = nnx.split(FeedForward(config, rngs=nnx.Rngs(0)))
    x_BLD = jax.random.normal(jax.random.key(0), (3, 5, 16))
    _, gradient = jax.vjp(lambda weights, x_BLD: nnx.merge(graphdef, weights)(x_BLD), weights, x_BLD)
    kept = [x for x in jax.tree.leaves(gradient) if jnp.shape(x) == (3, 5, 64)]
    assert len(kept) == 1
    assert jnp.allclose(kept[0], x_BLD @ weights["intermediate"]["kernel"][...], atol=1e-6)
