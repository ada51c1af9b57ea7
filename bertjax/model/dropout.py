"""Dropout, and the hash-based random bits for it and for other draws inside a network."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp

from bertjax.model.layers import recomputed

# The dropout mask is a pure function of (seed, step, row, layer, site, element): a hash of the element's position in
# its row under the row's key. So it does not depend on how the batch is split over devices or microbatches, and needs
# no stored generator. It costs a few integer operations, which fuse with the multiplication, and the backward pass
# computes it again. (A threefry mask costs several times as much and has to be stored for the backward pass.)

# Sites within a layer, or around the layers. The values are part of a run's identity: a new value changes the masks.
EMBEDDINGS, ATTENTION_PROBS, ATTENTION_OUTPUT, MLP_OUTPUT, HEAD, CONVOLUTION = range(6)


def _mix(x: jax.Array) -> jax.Array:
    """A bijective 32-bit finalizer with low bias (two xor-shift-multiply rounds)."""
    x = x ^ (x >> 16)
    x = x * jnp.uint32(0x21F0AAAD)
    x = x ^ (x >> 15)
    x = x * jnp.uint32(0x735A2D97)
    return x ^ (x >> 15)


def _high_bits(x: jax.Array) -> jax.Array:
    """Like `_mix`, without the steps that only change low bits: each high bit depends on every bit of x."""
    return _second_round(x * jnp.uint32(0x21F0AAAD))


def _second_round(x: jax.Array) -> jax.Array:
    return (x ^ (x >> 15)) * jnp.uint32(0x735A2D97)


def row_keys(seed: int, step: jax.Array, rows: jax.Array) -> jax.Array:
    """One dropout key per row: uint32 [B], from the run's seed, the step and the row's number in the global batch."""
    key = _mix(jnp.uint32(seed & 0xFFFFFFFF) + jnp.uint32(0x9E3779B9))
    key = _mix(key ^ step.astype(jnp.uint32)) + jnp.uint32(0x85EBCA6B)
    return _mix(_mix(key + rows.astype(jnp.uint32)) ^ key)


def fold(keys: jax.Array, number: jax.Array | int) -> jax.Array:
    """Derive the keys of a layer or a site from its number: uint32 [B]."""
    return _mix(keys + jnp.asarray(number, jnp.uint32) * jnp.uint32(0x9E3779B9) + jnp.uint32(1))


def random_bits(keys: jax.Array, count: int) -> jax.Array:
    """`count` random numbers for each key: uint32 [N] -> uint32 [N, count]."""
    position = jax.lax.iota(jnp.uint32, count) * jnp.uint32(0x9E3779B9)
    return _mix(_mix(keys)[:, None] + position)


def dropout(x: jax.Array, keys: jax.Array | None, site: int, rate: float) -> jax.Array:
    """Zero a share `rate` of x [B, ...] and scale the rest by 1 / (1 - rate); without keys (evaluation) return x."""
    if keys is None or rate == 0.0:
        return x
    assert math.prod(x.shape[1:]) < 2**32, "an element's position in its row must fit 32 bits"
    return _drop_all(x, fold(keys, site), rate)


def dropout_at(x: jax.Array, positions: jax.Array, keys: jax.Array, site: int, rate: float) -> jax.Array:
    """Apply `dropout` to some elements x [B, ...] of a larger array, at `positions` in its rows (uint32, broadcast)."""
    return _drop(x, positions, fold(keys, site), rate)


@partial(recomputed, static=(2,))
def _drop_all(x: jax.Array, keys: jax.Array, rate: float) -> jax.Array:
    inner = x.shape[1:]
    return _drop(x, jax.lax.iota(jnp.uint32, math.prod(inner)).reshape(inner), keys, rate)


def _drop(x: jax.Array, positions: jax.Array, keys: jax.Array, rate: float) -> jax.Array:
    # Without the barrier a scan over layers carries a constant of zeros in the shape of x. `beside` would not help: it
    # only acts where a gradient is taken, and keys have no gradient.
    keys, zero = jax.lax.optimization_barrier((keys, jnp.zeros((), x.dtype)))
    key = keys.reshape(-1, *[1] * (x.ndim - 1))
    keep = _high_bits(positions ^ key) >= _threshold(rate)
    return jnp.where(keep, x * (1.0 / (1.0 - rate)), zero).astype(x.dtype)


def _threshold(rate: float) -> jax.Array:
    return jnp.uint32(round(rate * 2**32))


def keep_scores(head: jax.Array, i: jax.Array, j: jax.Array, length: int, key: jax.Array, rate: float) -> jax.Array:
    """Dropout mask for the probabilities of a head, for kernels: the same bits that `dropout` uses for [B, H, L, L].

    `i` and `j` are the positions of queries and keys in a row of `length` tokens, and broadcast to the result. `key` is
    the row's key, folded with the site. All are uint32.
    """
    low = length - 1
    outer = (head * jnp.uint32(length) + i) * jnp.uint32(length)
    if length & low:
        return _high_bits((outer + j) ^ key) >= _threshold(rate)
    # `outer` and j share no bits, so the first product is a sum of a term of the queries and a term of the keys.
    factor, low = jnp.uint32(0x21F0AAAD), jnp.uint32(low)
    return _second_round((outer ^ (key & ~low)) * factor + (j ^ (key & low)) * factor) >= _threshold(rate)
