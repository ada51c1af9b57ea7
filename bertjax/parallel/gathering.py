"""Gather weights over the mesh axis `fsdp`, all at once or layer by layer, and scatter their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from bertjax.parallel import tpu
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import is_names, logical_axes, spec

Module = TypeVar("Module", bound=nnx.Module)


def specs_over(logical_axes: Any, axes: tuple[str, ...]) -> Any:
    """The PartitionSpec of each parameter, restricted to `axes` of the mesh."""
    part = lambda names: P(*[axis if axis in axes else None for axis in spec(names)])  # noqa: E731
    return jax.tree.map(part, logical_axes, is_leaf=is_names)


def is_stacked(names: tuple[str, ...]) -> bool:
    """Whether a parameter belongs to a stack of layers, by the logical names of its dims."""
    return names[0] == "layers"


def gather(params: Any, logical_axes: Any, mesh: Mesh | AbstractMesh, *, stacks: bool = True) -> Any:
    """Gather every parameter over `fsdp` where it is sharded; without `stacks`, stacked layers stay shards."""
    if mesh.shape["fsdp"] == 1:
        return params

    def gather_tensor(x: jax.Array, axes: P, names: tuple[str, ...]) -> jax.Array:
        if "fsdp" not in axes or (is_stacked(names) and not stacks):
            return x
        return jax.lax.all_gather(x, "fsdp", axis=_dim(axes), tiled=True)

    specs = specs_over(logical_axes, BATCH_AXES)
    return per_tensor_shard(lambda x: jax.tree.map(gather_tensor, x, specs, logical_axes), params, logical_axes, mesh)


def gather_layer(layer: Module, dtype: str) -> Module:
    """Gather the weights of one layer, rounded to the compute dtype; their gradients are summed and scattered.

    Only matrices are sharded, and `product` rounds them to that dtype anyway: the result is the same, and half of the
    bytes are sent. Gradients are sent in the dtype of the weights.
    """
    graphdef, state = nnx.split(layer)
    axes, mesh = logical_axes(state), jax.sharding.get_abstract_mesh()
    specs = specs_over(axes, BATCH_AXES)

    def cast(x: jax.Array, axes: P) -> jax.Array:
        return x.astype(dtype) if "fsdp" in axes else x

    def scatter(g: jax.Array, axes: P) -> jax.Array:
        return sum_and_scatter(g, axes, stacked=False) if "fsdp" in axes else g

    @jax.custom_vjp
    def whole(params: Any) -> Any:
        gathered = gather(jax.tree.map(cast, params, specs), axes, mesh)
        return jax.tree.map(lambda x, shard: x.astype(shard.dtype), gathered, params)

    def backward(_: None, grads: Any) -> tuple[Any]:
        return (per_tensor_shard(lambda g: jax.tree.map(scatter, g, specs), grads, axes, mesh),)

    whole.defvjp(lambda params: (whole(params), None), backward)
    return nnx.merge(graphdef, nnx.State(whole(nnx.to_pure_dict(state))))


def sum_and_scatter(gradient: jax.Array, axes: P, stacked: bool) -> jax.Array:
    """Sum a gradient over `fsdp` and keep this device's shard of it, along the dim that `fsdp` splits.

    `stacked`: the gradient belongs to a stack of layers, whose first dim is the layer.
    """
    dim = _dim(axes)
    scatter = partial(jax.lax.psum_scatter, axis_name="fsdp", scatter_dimension=dim, tiled=True)
    on_tpu = partial(tpu.sum_and_scatter, axis="fsdp", dim=dim, stacked=stacked)
    return jax.lax.platform_dependent(gradient, tpu=on_tpu, default=scatter)


def per_tensor_shard(exchange: Callable[[Any], Any], tree: Any, logical_axes: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Run `exchange`, which gathers or reduces over the batch axes, on each device's `tensor` shard of the parameters.

    With automatic sharding the compiler would first gather each array over `tensor`, and so send all of it.
    """
    if mesh.shape["tensor"] == 1 or mesh.shape["fsdp"] == 1:
        return exchange(tree)
    specs = specs_over(logical_axes, ("tensor",))
    return jax.shard_map(exchange, in_specs=(specs,), out_specs=specs, axis_names={"tensor"}, check_vma=False)(tree)


def _dim(axes: P) -> int:
    """The dim that `fsdp` splits."""
    return tuple(axes).index("fsdp")
