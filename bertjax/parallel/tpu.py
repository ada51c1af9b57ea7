"""The form in which XLA scatters a sum over the devices of a TPU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

_LANES = 512  # that a vocabulary is padded to a multiple of


def sum_and_scatter(x: jax.Array, axis: str, dim: int, stacked: bool) -> jax.Array:
    """`jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)` in a form that sends half as many bytes.

    A TPU sums an array whole on every device, and then cuts it, if it has four dims or one of a single element, if the
    dim that is cut is the last in memory, and, on v5e and v5p, if the last one is no multiple of 256 or has a large
    prime factor. Hence the other dims are joined behind the one that is cut, except the layers of a stack (`stacked`:
    the first dim), and a vocabulary is padded.
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
