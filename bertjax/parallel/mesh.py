"""The device mesh: which axes exist and how many devices lie along each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

from bertjax.config import MeshConfig

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")  # the axes that split a batch; the step is written per shard of these


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lay the devices out along `data`, `fsdp` and `tensor`.

    Raises ValueError if the product of the axes is not the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    shape = mesh_shape(config, len(devices), f"{devices[0].platform} devices that are here")
    # Auto axes: make_mesh defaults to Explicit, under which fused attention kernels lose their sharding.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def make_abstract_mesh(config: MeshConfig, devices: int) -> AbstractMesh:
    """The mesh of so many devices, none of which need be here. Raises ValueError like `make_mesh`."""
    shape = mesh_shape(config, devices, "devices it is for")
    return AbstractMesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def mesh_shape(config: MeshConfig, devices: int, which: str) -> tuple[int, ...]:
    """Size of each axis. Raises ValueError if their product is not the number of devices, which are called `which`."""
    sizes = [config.data, config.fsdp, config.tensor]
    asked = f"mesh data={config.data} fsdp={config.fsdp} tensor={config.tensor}"
    if sizes.count(-1) > 1 or any(size != -1 and size < 1 for size in sizes):
        raise ValueError(f"{asked}: every axis must be at least 1, and at most one may be -1 (= whatever is left)")
    fixed = math.prod(size for size in sizes if size != -1)
    if devices % fixed or (-1 not in sizes and fixed != devices):
        raise ValueError(
            f"{asked} does not fit the {devices} {which}; "
            f"make the product of the axes {devices}, or leave one axis at -1"
        )
    return tuple(devices // fixed if size == -1 else size for size in sizes)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the mesh splits a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)
