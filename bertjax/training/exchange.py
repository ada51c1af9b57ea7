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
    """The shapes of the argument `frozen`, each with its sharding."""
    return {name: network.params for name, network in blueprint.frozen.items()}


def frozen_shardings(blueprint: Blueprint) -> dict[str, Any]:
    """The shardings of the argument `frozen`."""
    return jax.tree.map(lambda leaf: leaf.sharding, frozen_shapes(blueprint))


def frozen_specs(blueprint: Blueprint) -> dict[str, Any]:
    """The PartitionSpecs of the argument `frozen`, over the batch axes only."""
    return {name: specs_over(network.logical_axes, BATCH_AXES) for name, network in blueprint.frozen.items()}


def gather_params(blueprint: Blueprint, params: Params, *, whole: bool = False) -> Params:
    """The trained parameters, gathered over the batch axes; with `execution.gather` layer, all but stacks of layers.

    `whole` gathers those too.
    """
    return gather(params, blueprint.logical_axes, blueprint.mesh, stacks=whole or _gathers_stacks(blueprint))


def gather_frozen(blueprint: Blueprint, frozen: Frozen) -> Frozen:
    """The frozen networks' parameters, gathered as those that are trained."""
    return {
        name: gather(params, blueprint.frozen[name].logical_axes, blueprint.mesh, stacks=_gathers_stacks(blueprint))
        for name, params in frozen.items()
    }


def reduce_gradients(grads: Params, blueprint: Blueprint) -> Params:
    """Sum gradients once over the batch axes, and scatter them over `fsdp` where the parameter is sharded.

    Those of weights that a layer gathers are summed and scattered over `fsdp` already.
    """
    # An axis of one device is left out, since summing over it would still copy every gradient.
    several = {axis for axis in BATCH_AXES if blueprint.mesh.shape[axis] > 1}
    stacks_are_whole = _gathers_stacks(blueprint)

    def reduce(g: jax.Array, axes: P, names: tuple[str, ...]) -> jax.Array:
        summed = several
        if "fsdp" in axes and "fsdp" in several:
            if stacks_are_whole or not is_stacked(names):
                g = sum_and_scatter(g, axes, is_stacked(names))
            summed = several - {"fsdp"}
        return jax.lax.psum(g, tuple(sorted(summed))) if summed else g

    axes = blueprint.logical_axes
    specs = specs_over(axes, BATCH_AXES)
    return per_tensor_shard(lambda x: jax.tree.map(reduce, x, specs, axes), grads, axes, blueprint.mesh)


def _gathers_stacks(blueprint: Blueprint) -> bool:
    return blueprint.execution.gather == "step"
