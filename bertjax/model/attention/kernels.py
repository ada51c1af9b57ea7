"""Run a fused kernel on each device's rows and heads; and the limits of the TPU kernel (mosaic.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bertjax.parallel.sharding import in_tuple, spec

MOSAIC_LENGTHS = 128  # the length of rows is a multiple of this
MOSAIC_LONGEST_WHOLE = 8192  # maximum tokens of a row that is not cut
MOSAIC_LONGEST_RELATIVE = 2048  # with relative positions: VMEM holds the vectors of all distances and their gradients
MOSAIC_HEAD_DIM = 128  # maximum dims of a head
MOSAIC_BLOCKS = (16, 32, 64)  # tokens of BigBird's blocks
JOINED_HEADS = ("mosaic", "mosaic_interpreted")  # backends whose kernel reads the heads as one dim
FUSED_ATTENTION = "fused_attention"  # name of the TPU kernel's results in policies of `jax.checkpoint`


class MosaicMemory(NamedTuple):
    """What the TPU kernel may hold in a chip's VMEM. Bytes are per dim: tokens times the size of an element."""

    row_bytes: int  # maximum of a row that is not cut
    longest: int  # maximum tokens of a row that is cut; its gradient sums are not
    chunk_bytes: int  # maximum of a chunk of a row

    def longest_whole(self, itemsize: int) -> int:
        """The maximum tokens of a row that is not cut, for elements of `itemsize` bytes."""
        return min(MOSAIC_LONGEST_WHOLE, self.row_bytes // itemsize)


# By the kind of TPU: those with VMEM of 16 or 64 MiB; others have 128.
_VMEM_16 = MosaicMemory(row_bytes=2048, longest=8192, chunk_bytes=1024)
_VMEM_64 = MosaicMemory(row_bytes=16384, longest=32768, chunk_bytes=4096)
_VMEM_128 = MosaicMemory(row_bytes=32768, longest=65536, chunk_bytes=8192)
_MEMORY: dict[str, MosaicMemory] = {
    **dict.fromkeys(("TPU v2", "TPU v3", "TPU v4"), _VMEM_16),
    **dict.fromkeys(("TPU v5", "TPU v5p", "TPU7x"), _VMEM_64),
}


def mosaic_memory(device_kind: str | None) -> MosaicMemory:
    """The limits for a kind of TPU."""
    return _MEMORY.get(device_kind or "", _VMEM_128)


Operand = tuple[jax.Array, tuple[str, ...]]  # an array, and the logical names of its dims
QKV = ("act_batch", "row_length", "row_heads", "head_dim")
TOKENS = ("act_batch", "row_length")
DISTANCES = ("row_heads", "position", "head_dim")
BLOCKS = ("row_heads", "position", "position")


def per_device(kernel: Callable[..., jax.Array], *operands: Operand) -> jax.Array:
    """Run the kernel under `shard_map` on each device's rows and heads. Its result has the dims `QKV`.

    The compiler cannot split a kernel: without this every device would compute all heads, or compilation would fail.
    """
    arrays = [array for array, _ in operands]
    mesh = jax.sharding.get_abstract_mesh()
    automatic = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto}
    if not automatic:
        return kernel(*arrays)

    def split(names: tuple[str, ...]) -> P:
        return P(*[tuple(axis for axis in in_tuple(axes) if axis in automatic) or None for axes in spec(names)])

    return jax.shard_map(
        kernel,
        in_specs=tuple(split(names) for _, names in operands),
        out_specs=split(QKV),
        axis_names=automatic,
        check_vma=False,
    )(*arrays)
