"""Layers: rounding, gradients, and what is kept for the backward pass."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.layers import ACTIVATIONS, FeedForward, LayerNorm
from bertjax.model.products import softmax
from bertjax.model.stack import REMAT_POLICIES, Layer


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bfloat16_activation_is_rounded_once(activation: str) -> None:
    x = jnp.linspace(-2.0, 4.0, 4096).astype(jnp.bfloat16)
    actual = jax.jit(ACTIVATIONS[activation])(x)
    assert actual.dtype == jnp.bfloat16
    # The tolerance allows for float32 values that fall on the other side of a tie.
    exact = np.asarray(ACTIVATIONS[activation](x.astype(jnp.float32)), np.float64)
    half_a_step = 2.0**-8 * np.abs(exact)
    assert (np.abs(np.asarray(actual, np.float64) - exact) <= half_a_step * (1 + 1e-5)).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_keeps_one_wide_array(activation: str) -> None:
    config = ModelConfig(
        vocab_size=32, hidden_size=16, num_attention_heads=2, intermediate_size=64, hidden_act=activation
    )
    graphdef, weights = nnx.split(FeedForward(config, rngs=nnx.Rngs(0)))
    x_BLD = jax.random.normal(jax.random.key(0), (3, 5, 16))
    _, gradient = jax.vjp(lambda weights, x_BLD: nnx.merge(graphdef, weights)(x_BLD), weights, x_BLD)
    residuals = [x for x in jax.tree.leaves(gradient) if jnp.shape(x) == (3, 5, 64)]
    assert len(residuals) == 1
    assert jnp.allclose(residuals[0], x_BLD @ weights["intermediate"]["kernel"][...], atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gelu_gradient_matches_formula(dtype: jnp.dtype) -> None:
    x, g = jnp.linspace(-6, 6, 4_001).astype(dtype), jnp.full(4_001, 3.0, dtype)
    (actual,) = jax.vjp(ACTIVATIONS["gelu"], x)[1](g)
    at = np.asarray(x, np.float64)
    density = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)
    exact = 3 * (0.5 * (1 + np.vectorize(math.erf)(at / math.sqrt(2))) + at * density)
    assert actual.dtype == dtype
    assert np.abs(np.asarray(actual, np.float64) - exact).max() <= 5 * jnp.finfo(dtype).eps  # values are up to 3.4


@pytest.mark.parametrize("shape", [(1, 2, 8, 512), (3, 40), (7,)], ids=str)
def test_softmax_gradient_matches_formula(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    scores, read = draw.normal(0, 4, shape).astype(np.float32), draw.normal(size=shape).astype(np.float32)
    scores[..., ::3] = np.finfo(np.float32).min  # as for tokens that do not see each other
    probs, back = jax.vjp(softmax, scores)
    exponentials = np.exp(scores.astype(np.float64) - scores.max(-1, keepdims=True))
    exact = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(probs, exact, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(back(read)[0], exact * (read - (exact * read).sum(-1, keepdims=True)), atol=1e-6)


@pytest.mark.parametrize("rows", [1, 3])
def test_norm_gradients_sum_over_all_rows_at_once(rows: int) -> None:
    """JAX would derive a sum over tokens, which takes 80 times as long on a CPU for a batch of one row."""
    x_BLD, read = np.random.default_rng(0).normal(2.0, 3.0, (2, rows, 40, 16)).astype(np.float32)
    graphdef, weights = nnx.split(LayerNorm(ModelConfig(), 16))

    def loss(weights: nnx.State) -> jax.Array:
        return jnp.sum(nnx.merge(graphdef, weights)(x_BLD) * read)

    centred = x_BLD - x_BLD.mean(-1, keepdims=True)
    normal = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-12)
    actual = jax.grad(loss)(weights)
    np.testing.assert_allclose(actual["scale"][...], (normal * read).sum((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(actual["bias"][...], read.sum((0, 1)), rtol=1e-5)
    program = str(jax.make_jaxpr(jax.grad(loss))(weights))
    sums = re.findall(r"f32\[([\d,]*)\] = reduce_sum\[\s*axes=\(([\d, ]*)\)", program)
    assert sums.count(("16", "0, 1")) == 2 and ("1,16", "1,") not in sums


def residual_shapes(remat: str, **model: Any) -> Counter[tuple[int, ...]]:
    """Shapes [3, 5, ...] of what a layer of width 16 keeps for its backward pass, besides its input."""
    config = ModelConfig(vocab_size=32, hidden_size=16, num_attention_heads=2, intermediate_size=64, **model)
    graphdef, weights = nnx.split(nnx.eval_shape(lambda: Layer(config, rngs=nnx.Rngs(0))))
    x_BLD, ids_BL = jax.ShapeDtypeStruct((3, 5, 16), jnp.float32), jnp.ones((3, 5), jnp.int32)

    def layer(weights: nnx.State, x_BLD: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, weights)(x_BLD, LayerInputs(ids_BL, packed=False))

    run = layer if remat == "none" else jax.checkpoint(layer, policy=REMAT_POLICIES[remat])
    _, gradient = jax.eval_shape(lambda *inputs: jax.vjp(run, *inputs), weights, x_BLD)
    residuals = Counter(x.shape for x in jax.tree.leaves(gradient) if x.shape[:2] == (3, 5) and x.ndim > 2)
    return residuals - Counter([x_BLD.shape])


@pytest.mark.parametrize("policy", REMAT_POLICIES)
def test_remat_dots_keeps_products_and_full_nothing(policy: str) -> None:
    expected = {"dots": [(3, 5, 3, 2, 8), (3, 5, 16), (3, 5, 16), (3, 5, 64)], "full": []}  # q k v, output, output, h
    assert residual_shapes(policy) == Counter(expected[policy])


@pytest.mark.parametrize(("norm_place", "sums"), [("post", 2), ("pre", 1)])
def test_layer_keeps_no_normalised_values(norm_place: str, sums: int) -> None:
    """Of the network's width it keeps the output of attention, and each sum that one of its norms reads."""
    assert residual_shapes("none", norm_place=norm_place)[3, 5, 16] == 1 + sums
