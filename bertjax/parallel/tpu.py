"""`psum_scatter` in a form that XLA compiles to a reduce-scatter on TPUs."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

_LANES = 1024  # a vocabulary is padded to a multiple of this


def sum_and_scatter(x: jax.Array, axis: str, dim: int, stacked: bool) -> jax.Array:
    """Like `jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)`; XLA compiles it to a reduce-scatter.

    XLA compiles the plain form to an all-reduce and a slice, which send twice the bytes, in four cases: the array has
    four dims; it has a dim of size 1; `dim` is last in memory; or, on v5e and v5p, the last dim is not a multiple of
    256 or has a large prime factor. So all dims but the layers (dim 0 if `stacked`) move behind `dim`, and a vocabulary
    is padded. If `axis` spans a whole slice of 4x4 or 2x2x2 chips, XLA (libtpu 0.0.42) still sums the whole array.
    """
    layers, split = (x.shape[0] if stacked else 1), x.shape[dim]
    before, after = math.prod(x.shape[stacked:dim]), math.prod(x.shape[dim + 1 :])
    joined = x.reshape(layers, before, split, after).swapaxes(1, 2).reshape(layers, split, before * after)
    if layers == 1:
        joined = joined[0]
    if x.ndim == 2:
        joined = jnp.pad(joined, [(0, 0), (0, -joined.shape[1] % _LANES)])
    joined = with_layout_constraint(joined, Layout(major_to_minor=tuple(range(joined.ndim))))
    shard = jax.lax.psum_scatter(joined, axis, scatter_dimension=joined.ndim - 2, tiled=True)
    shard = shard[..., : before * after].reshape(layers, -1, before, after).swapaxes(1, 2)
    return shard.reshape(*x.shape[:dim], -1, *x.shape[dim + 1 :])
