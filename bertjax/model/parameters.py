"""How parameters are made: initial value, and the logical name of every dim."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig


def weight(rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], config: ModelConfig) -> nnx.Param:
    """A kernel or an embedding table: truncated normal at two standard deviations, not rescaled (modeling.py)."""
    value = jax.nn.initializers.truncated_normal(config.initializer_range)(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, logical_axes=names)


def uniform(rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], bound: float) -> nnx.Param:
    """A recurrent layer's weights: anything between -bound and bound."""
    return nnx.Param(jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound), logical_axes=names)


def zeros(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A bias: zeros."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), logical_axes=names)


def ones(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A LayerNorm scale: ones."""
    return nnx.Param(jnp.ones(shape, jnp.float32), logical_axes=names)


def logical_axes(state: nnx.State) -> dict[str, Any]:
    """The parameter tree with each array replaced by the tuple of its dims' logical names.

    Parameters below a stack of layers (a node named `layers`) have the stack's dim in front.
    """
    tree: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        names = variable.get_metadata()["logical_axes"]
        node[path[-1]] = ("layers", *names) if "layers" in path else names
    return tree
