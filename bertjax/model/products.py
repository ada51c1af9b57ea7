"""Products, sums and softmax of the network: each function is a formula with a hand-written gradient.

The gradients equal those that JAX derives, up to rounding and dtypes. cpu.py contains the forms that XLA compiles to
fast code.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.model.cpu import (
    by_rows,
    column_sums,
    einsum_gradient,
    head_by_head,
    kernel_gradient,
    mixed,
    mixed_gradient,
    over_rows,
    scores_gradient,
    times_transposed,
)
from bertjax.model.scan_constants import stay_beside

__all__ = [
    "PRODUCT",
    "attention_scores",
    "by_rows",
    "column_sums",
    "head_by_head",
    "over_rows",
    "plus_bias",
    "product",
    "rounded_softmax",
    "softmax",
    "softmax_over",
    "summed",
    "unstack",
    "weighted_values",
]

_LOWEST = float(jnp.finfo(jnp.float32).min)
PRODUCT = "product"  # name of the results of `product` in policies of `jax.checkpoint`


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute x kernel in the dtype of x: [..., in], [in, *out] -> [..., *out].

    The kernel's gradient has the dtype of the kernel. On a CPU it is not rounded to the dtype of x first, which would
    take two more passes over it. On accelerators it is: the casts fuse with other passes, and narrow results move less
    data.
    """
    return checkpoint_name(_product(x, kernel), PRODUCT)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return by_rows(x, kernel.astype(x.dtype))


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    cast = kernel.astype(x.dtype)
    return by_rows(x, cast), (x, cast, jnp.zeros((), kernel.dtype))


def _product_backward(residuals: tuple[jax.Array, ...], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel, parameter = residuals
    dkernel = kernel_gradient(x, g, parameter.dtype)
    return times_transposed(g, kernel), dkernel


_product.defvjp(_product_forward, _product_backward)


@jax.custom_vjp
def attention_scores(q: jax.Array, k: jax.Array) -> jax.Array:
    """Compute q k / sqrt(K), before the softmax: [B, L, H, K] -> float32 [B, H, L, L]."""
    return jnp.einsum("BLHK,BMHK->BHLM", q * q.shape[-1] ** -0.5, k, preferred_element_type=jnp.float32)


def _scores_backward(factors: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return scores_gradient(factors[0], factors[1], g)


attention_scores.defvjp(lambda q, k: (attention_scores(q, k), (q, k)), _scores_backward)


@jax.custom_vjp
def softmax(scores: jax.Array) -> jax.Array:
    """Softmax over the last dim, float32 [..., M]."""
    return jax.nn.softmax(scores, axis=-1)


def _softmax_backward(probs: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return (probs * (g - jnp.sum(probs * g, axis=-1, keepdims=True)),)


softmax.defvjp(lambda scores: 2 * (softmax(scores),), _softmax_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def rounded_softmax(scores: jax.Array, dtype: DTypeLike) -> jax.Array:
    """`softmax` rounded to `dtype`; its gradient is computed from the rounded result, all that is kept for it."""
    return softmax(scores).astype(dtype)


def _rounded_forward(scores: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    probs = softmax(scores).astype(dtype)
    return probs, probs


def _rounded_backward(dtype: DTypeLike, probs: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    return _softmax_backward(probs.astype(jnp.float32), g.astype(jnp.float32))


rounded_softmax.defvjp(_rounded_forward, _rounded_backward)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def softmax_over(scores: jax.Array, seen: jax.Array, dtype: DTypeLike) -> jax.Array:
    """`softmax` over the visible keys, rounded to `dtype`: scores float32 [B, H, L, M], seen bool [B, L, M].

    The gradient is computed from the rounded result, so that the backward pass keeps neither scores nor mask.
    """
    return _masked_softmax(scores, seen, _LOWEST, dtype)


def _masked_softmax(scores: jax.Array, seen: jax.Array, lowest: jax.Array | float, dtype: DTypeLike) -> jax.Array:
    return softmax(jnp.where(seen[:, None], scores, lowest)).astype(dtype)


def _softmax_over_forward(scores: jax.Array, seen: jax.Array, dtype: DTypeLike) -> tuple[jax.Array, jax.Array]:
    seen, lowest = stay_beside(scores, (seen, _LOWEST))
    probs = _masked_softmax(scores, seen, lowest, dtype)
    return probs, probs


def _softmax_over_backward(dtype: DTypeLike, probs: jax.Array, g: jax.Array) -> tuple[jax.Array, None]:
    return _rounded_backward(dtype, probs, g)[0], None  # 0 at masked scores, where probs are 0


softmax_over.defvjp(_softmax_over_forward, _softmax_over_backward)


@jax.custom_vjp
def weighted_values(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Compute weights v in the dtype of v: [B, H, L, M], [B, M, H, K] -> [B, L, H, K]."""
    return mixed(weights, v)


def _values_backward(factors: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return mixed_gradient(factors[0], factors[1], g)


weighted_values.defvjp(lambda weights, v: (weighted_values(weights, v), (weights, v)), _values_backward)


def _summed(dims: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """`einsum` to float32 whose backward pass, too, multiplies arrays in the dtype of x and y.

    The gradients that JAX derives have a float32 factor, so that CPUs and GPUs compute the whole product in float32.
    """
    return jnp.einsum(dims, x, y, preferred_element_type=jnp.float32)


def _summed_backward(dims: str, factors: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return einsum_gradient(dims, factors[0], factors[1], g)


summed = jax.custom_vjp(_summed, nondiff_argnums=(0,))
summed.defvjp(lambda dims, x, y: (summed(dims, x, y), (x, y)), _summed_backward)


def unstack(x: jax.Array, axis: int) -> tuple[jax.Array, ...]:
    """Slice x along an axis. Its gradient concatenates the slices' gradients; x[i] would add padded arrays."""
    return tuple(part.squeeze(axis) for part in jax.lax.split(x, (1,) * x.shape[axis], axis))


@jax.custom_vjp
def plus_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Compute y + bias in the dtype of y: [*rows, *out], [*out]; the bias' gradient is summed in float32.

    The gradient that JAX derives is a sum in the dtype of y. In bfloat16 it is rounded after each row, and a CPU takes
    twenty times as long for it.
    """
    return y + bias.astype(y.dtype)


def _plus_bias_backward(bias: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g, jnp.sum(g, range(g.ndim - bias.ndim), dtype=jnp.float32).astype(bias.dtype)


plus_bias.defvjp(lambda y, bias: (plus_bias(y, bias), bias), _plus_bias_backward)
