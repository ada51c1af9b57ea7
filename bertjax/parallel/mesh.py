"""The device mesh: which axes exist and how many devices lie along each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

from bertjax.config import MeshConfig

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")  # the axes that split a batch; the step is written per shard of these


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Lay the devices out along `data`, `fsdp` and `tensor`.

    Raises ValueError if the product of the axes is not the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = [config.data, config.fsdp, config.tensor]
    asked = f"mesh data={config.data} fsdp={config.fsdp} tensor={config.tensor}"
    if sizes.count(-1) > 1 or any(size != -1 and size < 1 for size in sizes):
        raise ValueError(f"{asked}: every axis must be at least 1, and at most one may be -1 (= whatever is left)")
    fixed = math.prod(size for size in sizes if size != -1)
    if len(devices) % fixed or (-1 not in sizes and fixed != len(devices)):
        raise ValueError(
            f"{asked} does not fit the {len(devices)} {devices[0].platform} devices that are here; "
            f"make the product of the axes {len(devices)}, or leave one axis at -1"
        )
    shape = tuple(len(devices) // fixed if size == -1 else size for size in sizes)
    # Auto axes: make_mesh defaults to Explicit, under which fused attention kernels lose their sharding.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def batch_shards(mesh: Mesh) -> int:
    """Into how many parts the mesh splits a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)
