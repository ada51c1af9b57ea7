"""Communication in a step: gather parameters over `fsdp`, sum gradients over the batch axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from bertjax.model.network import Params
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import is_names, spec
from bertjax.training.state import Blueprint

Frozen = Mapping[str, Params]  # parameters of a run's frozen networks by name, the last argument of its steps
NO_FROZEN: Frozen = {}


def specs_over(logical_axes: Any, axes: tuple[str, ...]) -> Any:
    """The PartitionSpec of each parameter, restricted to these mesh axes."""
    part = lambda names: P(*[axis if axis in axes else None for axis in spec(names)])  # noqa: E731
    return jax.tree.map(part, logical_axes, is_leaf=is_names)


def frozen_shapes(blueprint: Blueprint) -> dict[str, Any]:
    """The shapes of the argument `frozen`, each with its sharding."""
    return {name: network.params for name, network in blueprint.frozen.items()}


def frozen_shardings(blueprint: Blueprint) -> dict[str, Any]:
    """The shardings of the argument `frozen`."""
    return jax.tree.map(lambda leaf: leaf.sharding, frozen_shapes(blueprint))


def frozen_specs(blueprint: Blueprint) -> dict[str, Any]:
    """The PartitionSpecs of the argument `frozen`, over the batch axes only."""
    return {name: specs_over(network.logical_axes, BATCH_AXES) for name, network in blueprint.frozen.items()}


def gather_frozen(blueprint: Blueprint, frozen: Frozen) -> Frozen:
    """The frozen networks' parameters, gathered over the batch axes."""
    return {
        name: gather(params, blueprint.frozen[name].logical_axes, blueprint.mesh) for name, params in frozen.items()
    }


def gather(params: Params, logical_axes: Any, mesh: Mesh) -> Params:
    """Gather every parameter over `fsdp` where it is sharded."""
    if mesh.shape["fsdp"] == 1:
        return params

    def gather_tensor(x: jax.Array, axes: P) -> jax.Array:
        return jax.lax.all_gather(x, "fsdp", axis=tuple(axes).index("fsdp"), tiled=True) if "fsdp" in axes else x

    specs = specs_over(logical_axes, BATCH_AXES)
    return _per_tensor_shard(lambda x: jax.tree.map(gather_tensor, x, specs), params, logical_axes, mesh)


def reduce_gradients(grads: Params, blueprint: Blueprint) -> Params:
    """Sum gradients once over the batch axes, and scatter them over `fsdp` where the parameter is sharded."""
    # An axis of one device is left out, since summing over it would still copy every gradient.
    several = {axis for axis in BATCH_AXES if blueprint.mesh.shape[axis] > 1}

    def reduce(g: jax.Array, axes: P) -> jax.Array:
        summed = several
        if "fsdp" in axes and "fsdp" in several:
            g = jax.lax.psum_scatter(g, "fsdp", scatter_dimension=tuple(axes).index("fsdp"), tiled=True)
            summed = several - {"fsdp"}
        return jax.lax.psum(g, tuple(sorted(summed))) if summed else g

    specs = specs_over(blueprint.logical_axes, BATCH_AXES)
    return _per_tensor_shard(lambda x: jax.tree.map(reduce, x, specs), grads, blueprint.logical_axes, blueprint.mesh)


def _per_tensor_shard(exchange: Callable[[Params], Params], tree: Params, logical_axes: Any, mesh: Mesh) -> Params:
    """Gather or reduce over the batch axes each device's shard of the parameters.

    With automatic sharding the compiler first gathers each array over `tensor`, and so sends all of it.
    """
    if mesh.shape["tensor"] == 1 or mesh.shape["fsdp"] == 1:
        return exchange(tree)
    specs = specs_over(logical_axes, ("tensor",))
    return jax.shard_map(exchange, in_specs=(specs,), out_specs=specs, axis_names={"tensor"}, check_vma=False)(tree)
