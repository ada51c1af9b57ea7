"""The parts a BERT layer is made of, and the layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.attention.self_attention import SelfAttention
from bertjax.model.dropout import ATTENTION_OUTPUT, MLP_OUTPUT, dropout
from bertjax.model.parameters import ones, weight, zeros
from bertjax.model.product import product
from bertjax.model.recomputed import recomputed
from bertjax.parallel.sharding import constrain


@recomputed
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) through erf, as Hugging Face computes it; jax.nn.gelu goes through erfc, which takes twice as long."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": recomputed(partial(jax.nn.gelu, approximate=True))}


class Dense(nnx.Module):
    """x @ kernel + bias, [..., in] -> [..., out]."""

    def __init__(
        self, config: ModelConfig, sizes: tuple[int, int], names: tuple[str, str], bias_name: str, *, rngs: nnx.Rngs
    ) -> None:
        self.kernel = weight(rngs, sizes, names, config)
        self.bias = zeros(sizes[1:], (bias_name,))

    def __call__(self, x: jax.Array) -> jax.Array:
        return product(x, self.kernel[...].astype(x.dtype)) + self.bias[...].astype(x.dtype)


class LayerNorm(nnx.Module):
    """Normalise the last dim in float32, whatever the dtype of x (epsilon 1e-12 in BERT)."""

    def __init__(self, config: ModelConfig) -> None:
        self.scale = ones((config.hidden_size,), ("hidden",))
        self.bias = zeros((config.hidden_size,), ("hidden",))
        self.epsilon = config.layer_norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        return _normalized(x, self.scale[...], self.bias[...], self.epsilon)


@partial(recomputed, static=(3,))
def _normalized(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + epsilon) * scale + bias).astype(x.dtype)


class FeedForward(nnx.Module):
    """Dense, activation, dense: [B, L, D] -> [B, L, F] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.intermediate = Dense(config, (D, F), ("embed", "mlp"), "mlp", rngs=rngs)
        self.output = Dense(config, (F, D), ("mlp", "embed"), "hidden", rngs=rngs)
        self.activation = config.hidden_act

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        h = constrain(self.intermediate(x_BLD), "act_batch", "act_length", "act_mlp")
        return _activated(h, self.output, ACTIVATIONS[self.activation])


@partial(recomputed, static=(2,))
def _activated(h_BLF: jax.Array, output: Dense, activation: Callable[[jax.Array], jax.Array]) -> jax.Array:
    # With the product in it, of the two that are F wide only h is kept.
    return output(activation(h_BLF))


class Layer(nnx.Module):
    """One post-LN transformer layer (paper, section 3): each half is LayerNorm(x + dropout(f(x)))."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.attention = SelfAttention(config, rngs=rngs)
        self.attention_norm = LayerNorm(config)
        self.mlp = FeedForward(config, rngs=rngs)
        self.mlp_norm = LayerNorm(config)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, x_BLD: jax.Array, sequence_ids: jax.Array, keys: jax.Array | None, packed: bool, attention: Backend
    ) -> jax.Array:
        attended = self.attention(x_BLD, sequence_ids, keys, packed, attention)
        x_BLD = self.attention_norm(x_BLD + dropout(attended, keys, ATTENTION_OUTPUT, self.dropout_rate))
        x_BLD = self.mlp_norm(x_BLD + dropout(self.mlp(x_BLD), keys, MLP_OUTPUT, self.dropout_rate))
        return constrain(x_BLD, "act_batch", "act_length", "act_embed")
