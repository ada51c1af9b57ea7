"""The device mesh: which axes exist and how many devices lie along each."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from bertjax.config import MeshConfig

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers

AXES = ("data", "fsdp", "length", "tensor")
BATCH_AXES = ("data", "fsdp")  # the axes that split a batch; the step is written per shard of these


def make_mesh(config: MeshConfig, devices: Sequence[Device] | None = None, slices: Sequence[int] | None = None) -> Mesh:
    """Arrange the devices along the axes, so that only the `dcn` factors cross slices.

    `slices` contains the slice of each device; by default the devices provide it. `config.fsdp` 0 is 1 here, because
    only a run has weights to shard (`training_mesh`). Raises ValueError if the product of the axes is not the number of
    devices, or if slices cannot be laid along the axes as configured.
    """
    devices = jax.devices() if devices is None else list(devices)
    shape = mesh_shape(config, len(devices), f"{devices[0].platform} devices")
    numbers = slice_numbers(devices) if slices is None else slices
    parts = [[d for d, number in zip(devices, numbers, strict=True) if number == n] for n in sorted(set(numbers))]
    across = slice_shape(config, shape, len(parts))
    within = tuple(size // factor for size, factor in zip(shape, across, strict=True))
    axes = mesh_axes(config)
    # Within a slice the order follows the interconnect; between slices it does not matter.
    blocks = np.empty(len(parts), object)
    for number, part in enumerate(parts):
        blocks[number] = mesh_utils.create_device_mesh(within, part, allow_split_physical_axes=True)
    # Auto axes: Explicit ones, jax's default, make fused attention kernels lose their sharding.
    return Mesh(np.block(blocks.reshape(across).tolist()), axes, axis_types=(AxisType.Auto,) * len(axes))


def mesh_sharing(rows: Collection[int]) -> Mesh:
    """A `data` mesh over the largest number of devices that divides every number in `rows`."""
    most = math.gcd(*rows)
    count = max(n for n in range(1, jax.device_count() + 1) if most % n == 0)
    return make_mesh(MeshConfig(), jax.devices()[:count])


def without_mesh() -> AbstractContextManager[object]:
    """Unset the mesh inside the context, so that programs may use arrays on a single device."""
    return jax.set_mesh(Mesh(np.empty((), object), ()))


def slice_numbers(devices: Sequence[Device]) -> tuple[int, ...]:
    """The TPU slice of each device, or the NVLink domain of a GPU."""
    return tuple(getattr(device, "slice_index", None) or 0 for device in devices)


def slice_shape(config: MeshConfig, shape: tuple[int, ...], slices: int) -> tuple[int, ...]:
    """The factor of each axis that crosses slices.

    Raises ValueError naming the keys if their product is not the number of slices, or one does not divide its axis.
    """
    settings = f"mesh.dcn_data={config.dcn_data} mesh.dcn_fsdp={config.dcn_fsdp}"
    if config.dcn_fsdp < 1 or slices % config.dcn_fsdp:
        raise ValueError(f"{settings}: mesh.dcn_fsdp must divide the number of slices, which is {slices}")
    data = slices // config.dcn_fsdp if config.dcn_data == -1 else config.dcn_data
    if data * config.dcn_fsdp != slices:
        raise ValueError(f"{settings} does not match the {slices} slice(s) of these devices; leave mesh.dcn_data at -1")
    crossing, axes = {"data": data, "fsdp": config.dcn_fsdp}, mesh_axes(config)
    factors = tuple(crossing.get(axis, 1) for axis in axes)
    for axis, size, factor in zip(axes, shape, factors, strict=True):
        if size % factor:
            raise ValueError(
                f"mesh.{axis}={size} cannot be split over {factor} of the {slices} slices ({settings}); "
                f"make it a multiple of {factor}, or give the slices to another axis (mesh.dcn_fsdp)"
            )
    return factors


def make_abstract_mesh(config: MeshConfig, devices: int) -> AbstractMesh:
    """The mesh for a number of devices, which need not exist. Raises ValueError like `make_mesh`."""
    shape, axes = mesh_shape(config, devices, "devices it is planned for"), mesh_axes(config)
    return AbstractMesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))


def mesh_axes(config: MeshConfig) -> tuple[str, ...]:
    """The axes of a mesh: `AXES`, without `length` if rows are not split."""
    return tuple(axis for axis in AXES if axis != "length" or config.length != 1)


def mesh_shape(config: MeshConfig, devices: int, description: str) -> tuple[int, ...]:
    """Size of each axis. Raises ValueError, with a description of the devices, if the product is not their number."""
    size_by_axis = {axis: getattr(config, axis) or (1 if axis == "fsdp" else 0) for axis in mesh_axes(config)}
    sizes = list(size_by_axis.values())
    settings = " ".join(["mesh", *[f"{axis}={size}" for axis, size in size_by_axis.items()]])
    if sizes.count(-1) > 1 or any(size != -1 and size < 1 for size in sizes):
        raise ValueError(f"{settings}: every axis must be at least 1, and at most one may be -1 (= whatever is left)")
    fixed = math.prod(size for size in sizes if size != -1)
    if devices % fixed or (-1 not in sizes and fixed != devices):
        raise ValueError(
            f"{settings} does not fit the {devices} {description}; "
            f"make the product of the axes {devices}, or leave one axis at -1"
        )
    return tuple(devices // fixed if size == -1 else size for size in sizes)


def batch_shards(mesh: Mesh) -> int:
    """The number of shards of a batch."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def row_parts(mesh: Mesh | AbstractMesh) -> int:
    """The number of devices that share a row, each with an equal part of its tokens."""
    return mesh.shape.get("length", 1)
