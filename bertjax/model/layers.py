"""The parts of every network: parameters, products, activations, Dense, LayerNorm, the feed-forward net, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bertjax.config import ModelConfig
from bertjax.parallel.sharding import constrain

PRODUCT = "product"  # name that a policy of `jax.checkpoint` knows the results of `product` by

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], config: ModelConfig) -> nnx.Param:
    """A kernel or an embedding table: truncated normal at two standard deviations, not rescaled (modeling.py)."""
    value = jax.nn.initializers.truncated_normal(config.initializer_range)(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, logical_axes=names)


def uniform(rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], bound: float) -> nnx.Param:
    """A weight of a recurrent layer: uniform between -bound and bound."""
    return nnx.Param(jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound), logical_axes=names)


def zeros(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A bias: zeros."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), logical_axes=names)


def ones(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A LayerNorm scale: ones."""
    return nnx.Param(jnp.ones(shape, jnp.float32), logical_axes=names)


def recomputed(function: Callable[Inputs, Output], static: tuple[int, ...] = ()) -> Callable[Inputs, Output]:
    """The function, with only its inputs kept for the backward pass, which computes the intermediate values again.

    It is for element-wise arithmetic, which takes less time than writing and reading its intermediate values, and for a
    product at the end of such arithmetic: no gradient needs the product, so it is computed once. The bits do not
    change. `static` are the numbers of arguments that are not arrays.
    """
    # The backward pass of a scan over layers is a loop of its own: there is nothing that CSE could merge.
    return jax.checkpoint(function, prevent_cse=False, static_argnums=static)


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x kernel: [..., in] and [in, *out] -> [..., *out], in their dtype."""
    return checkpoint_name(_product(x, kernel), PRODUCT)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return jnp.tensordot(x, kernel, axes=1)


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _product(x, kernel), (x, kernel)


def _product_backward(factors: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The derivative of the product, with the factors of the kernel's gradient in another order than JAX derives.

    JAX puts g first, and XLA on a CPU transposes the first factor in memory: where g is four times as wide as x, the
    gradient takes a third longer at 896 rows and three times as long at 1,024. Here the narrower factor is first.
    """
    x, kernel = factors
    rows, out = tuple(range(x.ndim - 1)), tuple(range(x.ndim - 1, g.ndim))
    by_x = jnp.tensordot(g, kernel, axes=(out, tuple(range(1, kernel.ndim))))
    if kernel.shape[0] <= math.prod(kernel.shape[1:]):
        return by_x, jnp.tensordot(x, g, axes=(rows, rows))
    return by_x, jnp.moveaxis(jnp.tensordot(g, x, axes=(rows, rows)), -1, 0)


_product.defvjp(_product_forward, _product_backward)


@recomputed
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) through erf, as Hugging Face computes it; jax.nn.gelu uses erfc, which takes twice as long."""
    return 0.5 * x * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": recomputed(partial(jax.nn.gelu, approximate=True)),
    "relu": recomputed(jax.nn.relu),
    "silu": recomputed(jax.nn.silu),
}


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

    def __init__(self, config: ModelConfig, width: int) -> None:
        self.scale = ones((width,), ("hidden",))
        self.bias = zeros((width,), ("hidden",))
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
    # The product is included so that only one array of width F is kept: h.
    return output(activation(h_BLF))


# Dropout's mask is a pure function of (seed, step, row, layer, site, element). A bit of it is a hash of the element's
# place in its row under a key of the row, so it does not depend on how the batch is split over devices or microbatches,
# needs no stored generator, and costs a few integer operations that fuse with the multiplication they guard, in the
# backward pass once more (a threefry mask costs several times as much and has to be kept for it).

# Sites within a layer, or around the layers. Their values are part of a run's identity: a new value changes the masks.
EMBEDDINGS, ATTENTION_PROBS, ATTENTION_OUTPUT, MLP_OUTPUT, HEAD = range(5)


def _mix(x: jax.Array) -> jax.Array:
    """A bijective 32-bit finalizer with low bias (two xor-shift-multiply rounds)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


def _high_bits(x: jax.Array) -> jax.Array:
    """As `_mix`, without what changes low bits only: each high bit depends on every bit of x. Runs once per element."""
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    return x * jnp.uint32(0x735A2D97)


def row_keys(seed: int, step: jax.Array, rows: jax.Array) -> jax.Array:
    """One dropout key per row: uint32 [B], from the run's seed, the step and the row's number in the global batch."""
    key = _mix(jnp.uint32(seed & 0xFFFFFFFF) + jnp.uint32(0x9E3779B9))
    key = _mix(key ^ step.astype(jnp.uint32)) + jnp.uint32(0x85EBCA6B)
    return _mix(_mix(key + rows.astype(jnp.uint32)) ^ key)


def fold(keys: jax.Array, number: jax.Array | int) -> jax.Array:
    """Keys for a numbered part (a layer, a site): uint32 [B]."""
    return _mix(keys + jnp.asarray(number, jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(1))


def random_bits(keys: jax.Array, count: int) -> jax.Array:
    """`count` random numbers for each key: uint32 [N] -> uint32 [N, count]."""
    place = jax.lax.iota(jnp.uint32, count) * jnp.uint32(0x9E3779B9)
    return _mix(_mix(keys)[:, None] + place)


def dropout(x: jax.Array, keys: jax.Array | None, site: int, rate: float) -> jax.Array:
    """Zero a share `rate` of x [B, ...] and scale the rest by 1 / (1 - rate); without keys (evaluation) return x."""
    if keys is None or rate == 0.0:
        return x
    assert math.prod(x.shape[1:]) < 2**32, "an element's place in its row must fit 32 bits"
    return _dropped(x, fold(keys, site), rate)


def dropout_at(x: jax.Array, places: jax.Array, keys: jax.Array, site: int, rate: float) -> jax.Array:
    """`dropout` for some elements x [B, ...] of a larger array, whose `places` in its rows (uint32) broadcast to x."""
    return _kept(x, places, fold(keys, site), rate)


@partial(recomputed, static=(2,))
def _dropped(x: jax.Array, keys: jax.Array, rate: float) -> jax.Array:
    inner = x.shape[1:]
    return _kept(x, jax.lax.iota(jnp.uint32, math.prod(inner)).reshape(inner), keys, rate)


def _kept(x: jax.Array, places: jax.Array, keys: jax.Array, rate: float) -> jax.Array:
    key = keys.reshape(-1, *[1] * (x.ndim - 1))
    keep = _high_bits(places ^ key) >= jnp.uint32(round(rate * 2**32))
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), jnp.zeros((), x.dtype)).astype(x.dtype)
