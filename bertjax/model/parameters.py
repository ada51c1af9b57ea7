"""Create parameters with their initial values: kernels and tables, biases, scales."""

from __future__ import annotations

import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig

# Where a kernel's output goes; `initializer` scaled derives the standard deviation from it.
Role = Literal["inner", "output", "classes"]


def weight(
    rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], config: ModelConfig, role: Role = "inner"
) -> nnx.Param:
    """A kernel or an embedding table: truncated normal at two standard deviations, not rescaled (modeling.py).

    With `initializer` scaled, the deviation depends on the role, as in transformers'
    `ModernBertPreTrainedModel._init_weights`.
    """
    if config.initializer == "uniform":
        return uniform(rngs, shape, names, config.initializer_range)
    deviation = config.initializer_range
    if config.initializer == "scaled" and role != "inner":
        output_deviation = deviation / math.sqrt(2 * config.num_hidden_layers)
        deviation = output_deviation if role == "output" else config.hidden_size**-0.5
    value = jax.nn.initializers.truncated_normal(deviation)(rngs.params(), shape, jnp.float32)
    return nnx.Param(value, logical_axes=names)


def uniform(rngs: nnx.Rngs, shape: tuple[int, ...], names: tuple[str, ...], bound: float) -> nnx.Param:
    """A weight drawn uniformly between -bound and bound."""
    return nnx.Param(jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound), logical_axes=names)


def zeros(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A bias: zeros."""
    return nnx.Param(jnp.zeros(shape, jnp.float32), logical_axes=names)


def ones(shape: tuple[int, ...], names: tuple[str, ...]) -> nnx.Param:
    """A LayerNorm scale: ones."""
    return nnx.Param(jnp.ones(shape, jnp.float32), logical_axes=names)


def named_arrays(tree: Any) -> dict[str, Any]:
    """Map each path (`params/encoder/kernel`) to its leaf, in the tree's order."""
    leaves = jax.tree.leaves_with_path(tree)
    arrays = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    assert len(arrays) == len(leaves), "two leaves of the state have the same path"
    return arrays
