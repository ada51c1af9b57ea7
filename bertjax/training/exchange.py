"""Communication in a step: gather parameters over `fsdp`, sum gradients over the batch axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from bertjax.model.network import Params
from bertjax.parallel.gathering import gather, is_stacked, per_tensor_shard, specs_over, sum_and_scatter
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.training.state import Blueprint

Frozen = Mapping[str, Params]  # parameters of a run's frozen networks by name, the last argument of its steps
NO_FROZEN: Frozen = {}


def frozen_shapes(blueprint: Blueprint) -> dict[str, Any]:
    """The shapes of the `frozen` argument, each with its sharding."""
    return {name: network.params for name, network in blueprint.frozen.items()}


def frozen_shardings(blueprint: Blueprint) -> dict[str, Any]:
    """The shardings of the `frozen` argument."""
    return jax.tree.map(lambda leaf: leaf.sharding, frozen_shapes(blueprint))


def frozen_specs(blueprint: Blueprint) -> dict[str, Any]:
    """The PartitionSpecs of the `frozen` argument, over the batch axes only."""
    return {name: specs_over(network.logical_axes, BATCH_AXES) for name, network in blueprint.frozen.items()}


def gather_params(blueprint: Blueprint, params: Params, *, whole: bool = False) -> Params:
    """Gather the trained parameters over the batch axes.

    With `execution.gather='layer'`, stacks of layers stay sharded unless `whole` is set.
    """
    return gather(params, blueprint.logical_axes, blueprint.mesh, stacks=whole or _gathers_stacks(blueprint))


def gather_frozen(blueprint: Blueprint, frozen: Frozen) -> Frozen:
    """Gather the frozen networks' parameters like the trained ones."""
    return {
        name: gather(params, blueprint.frozen[name].logical_axes, blueprint.mesh, stacks=_gathers_stacks(blueprint))
        for name, params in frozen.items()
    }


def reduce_gradients(grads: Params, blueprint: Blueprint) -> Params:
    """Sum gradients once over the batch axes, and scatter them over `fsdp` where the parameter is sharded.

    Gradients of weights that are gathered by layer are already summed and scattered over `fsdp`.
    """
    # Skip axes of size 1: a sum over them would still copy every gradient.
    axes_to_sum = {axis for axis in BATCH_AXES if blueprint.mesh.shape[axis] > 1}
    stacks_are_whole = _gathers_stacks(blueprint)

    def reduce(g: jax.Array, axes: P, names: tuple[str, ...]) -> jax.Array:
        remaining = axes_to_sum
        if "fsdp" in axes and "fsdp" in axes_to_sum:
            if stacks_are_whole or not is_stacked(names):
                g = sum_and_scatter(g, axes, is_stacked(names))
            remaining = axes_to_sum - {"fsdp"}
        return jax.lax.psum(g, tuple(sorted(remaining))) if remaining else g

    axes = blueprint.logical_axes
    specs = specs_over(axes, BATCH_AXES)
    return per_tensor_shard(lambda x: jax.tree.map(reduce, x, specs, axes), grads, axes, blueprint.mesh)


def _gathers_stacks(blueprint: Blueprint) -> bool:
    return blueprint.execution.gather == "step"
