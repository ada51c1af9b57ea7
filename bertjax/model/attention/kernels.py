"""Run a fused kernel on each device's rows and heads; and splash, the TPU kernel, which skips invisible blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from bertjax.parallel.sharding import in_tuple, spec

SPLASH_LENGTHS = 128  # splash needs rows whose length is a multiple of this
MOSAIC_LENGTHS = 128  # and so does the kernel of mosaic.py
MOSAIC_LONGEST = 8192  # tokens of a row; the keys of a whole row are in the chip's own memory
MOSAIC_LONGEST_RELATIVE = 2048  # with the vectors of all distances there, and the sums of their gradients
MOSAIC_HEAD_DIMS = (16, 32, 64, 128)
MOSAIC_BLOCKS = (16, 32, 64)  # tokens of BigBird's blocks
# Most bytes of one dim of a row's tokens, by the kind of TPU, where its own memory has 16 or 64 MiB and not 128.
MOSAIC_ROW_BYTES = {"TPU v2": 2048, "TPU v3": 2048, "TPU v4": 2048, "TPU v5": 16384, "TPU v5p": 16384, "TPU7x": 16384}
JOINED_HEADS = ("mosaic", "mosaic_interpreted")  # backends whose kernel reads the heads as one dim
FUSED_ATTENTION = "fused_attention"  # name that a policy of `jax.checkpoint` knows results of mosaic.py's kernel by


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    *,
    causal: bool,
    window: int = 0,
    interpret: bool = False,
) -> jax.Array:
    """Call the TPU's splash attention, which supports sequence ids and computes in float32 within a block.

    It skips blocks of keys outside the window.
    """
    # Imported here because it takes a quarter of a second that other runs do not need to spend.
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, heads = q.shape[1:3]
    square = (length, length)
    if window:
        mask = splash.LocalMask(square, window_size=(window, 0 if causal else window), offset=0)
    else:
        mask = (splash.CausalMask if causal else splash.FullMask)(square)
    # The largest blocks that fit: with the default of 128 most of the time goes to moving them in and out.
    block = next(size for size in (512, 256, SPLASH_LENGTHS) if length % size == 0)
    blocks = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(**dict.fromkeys(blocks, block)),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    q, k, v = (x.swapaxes(1, 2) for x in (q * (q.shape[-1] ** -0.5), k, v))
    attended = cast("Callable[..., jax.Array]", jax.vmap(kernel))
    return attended(q, k, v, splash.SegmentIds(sequence_ids, sequence_ids)).swapaxes(1, 2)


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
