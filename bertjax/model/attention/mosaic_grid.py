"""The grid of the attention kernel for TPUs: how rows are cut, and which blocks a grid step holds in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention.kernels import mosaic_memory
from bertjax.model.attention.mosaic_blocks import LANES, SUBLANES, Blocks, Scalars, Settings, largest

_UNIT = 512  # the length of a piece is a multiple of this, so that unrolled loops have no remainder
_TOKENS = {"ids": 2, "qkv": 2, "dqkv": 2, "o": 1, "do": 1, "lse": 3}  # the dim of tokens in each array


def in_parts(settings: Settings, length: int, itemsize: int) -> Settings:
    """Cut rows of `length` tokens that exceed the memory: with a window into pieces, else into chunks."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    memory = mosaic_memory(device and device.device_kind)
    longest = memory.longest_whole(itemsize)
    if length <= longest or settings.relative or settings.block:
        return settings
    if settings.window and 4 * _overlap(settings) <= longest:
        return settings._replace(piece=longest, length=length)
    most = memory.chunk_bytes // itemsize
    return settings._replace(chunk=LANES * largest(length // LANES, lambda n: n * LANES <= most))


def _overlap(settings: Settings) -> int:
    """Tokens on either side of a piece's own tokens that it shares with its neighbours."""
    return LANES * -(-settings.window // LANES)


def call_kernel(
    kernel: Callable[..., None],
    settings: Settings,
    scalars: Scalars,
    inputs: dict[str, jax.Array],
    outputs: dict[str, jax.ShapeDtypeStruct],
    sums: tuple[str, ...] = (),
) -> list[jax.Array]:
    """Run a kernel on named arrays, on rows or on their pieces; `sums` are names of scratch arrays, float32 [L, LANES].

    Pieces overlap by the reach of the window, so each contains all tokens that its own tokens see or are seen by. Keys
    in a window are a single block, so the kernel does not read `scalars.spans`, which describe whole rows.
    """
    if not settings.piece:
        return _call(kernel, settings, scalars, inputs, outputs, sums)
    (B, _, L, _), beside = inputs["qkv"].shape, _overlap(settings)
    count = -(-L // (settings.piece - 2 * beside))
    size = min(settings.piece, _UNIT * -(-(L // count + 2 * beside) // _UNIT))
    own = size - 2 * beside
    # Where each piece starts in the row, and its own tokens in the piece.
    starts = [min(max(first - beside, 0), L - size) for first in range(0, L, own)]
    owned = [(n * own - start, min(n * own - start + own, size)) for n, start in enumerate(starts)]

    def cut(name: str, x: jax.Array) -> jax.Array:
        return jnp.concatenate([jax.lax.slice_in_dim(x, start, start + size, axis=_TOKENS[name]) for start in starts])

    def join(name: str, x: jax.Array) -> jax.Array:
        pieces = zip(jnp.split(x, len(starts)), owned, strict=True)
        parts = [jax.lax.slice_in_dim(piece, *tokens, axis=_TOKENS[name]) for piece, tokens in pieces]
        return jnp.concatenate(parts, axis=_TOKENS[name])

    keys, offsets = jnp.tile(scalars.keys, len(starts)), jnp.repeat(jnp.asarray(starts, jnp.int32), B)
    scalars = scalars._replace(keys=keys, starts=offsets)
    inputs = {name: cut(name, x) for name, x in inputs.items()}
    shapes = {name: jax.eval_shape(lambda x, name=name: cut(name, x), x) for name, x in outputs.items()}
    results = _call(kernel, settings, scalars, inputs, shapes, sums)
    return [join(name, x) for name, x in zip(outputs, results, strict=True)]


def _call(
    kernel: Callable[..., None],
    settings: Settings,
    scalars: Scalars,
    inputs: dict[str, jax.Array],
    outputs: dict[str, jax.ShapeDtypeStruct],
    sums: tuple[str, ...],
) -> list[jax.Array]:
    B, _, L, E = inputs["qkv"].shape
    blocks = Blocks.choose(settings, inputs["qkv"].shape, inputs["qkv"].dtype.itemsize)
    rows, groups, wide, tokens = blocks.rows, blocks.groups, blocks.groups * LANES, settings.chunk or L
    chunked, last = blocks.chunks > 1, blocks.chunks - 1

    def spec(shape: tuple[int, ...], place: Callable[..., tuple[Any, ...]]) -> pl.BlockSpec:
        """A block at place(group, row, chunk of queries, chunk of keys)."""
        return pl.BlockSpec(shape, lambda g, b, *more: place(g, b, *(more[:2] if chunked else (0, 0))))

    one, three, table = (rows, 1, tokens, wide), (rows, 3, tokens, wide), (2, groups, 2 * L, LANES)
    specs = {
        "ids": spec((rows, 1, tokens), lambda g, b, i, j: (b, 0, i)),
        "key_ids": spec((rows, 1, tokens), lambda g, b, i, j: (b, 0, j)),
        **dict.fromkeys(("qkv", "dqkv"), spec(three, lambda g, b, i, j: (b, 0, 0, g))),
        "qkv0": spec(one, lambda g, b, i, j: (b, 0, i, g)),
        "qkv1": spec(one, lambda g, b, i, j: (b, 1, j, g)),
        "qkv2": spec(one, lambda g, b, i, j: (b, 2, j, g)),
        "dqkv0": spec(one, lambda g, b, i, j: (b, 0, i, g)),
        # Written with the last chunk of queries; until then the index stays at the first block.
        **dict.fromkeys(("dqkv1", "dqkv2"), spec(one, lambda g, b, i, j: (b, 0, jnp.where(i == last, j, 0), g))),
        **dict.fromkeys(("o", "do"), spec((rows, tokens, wide), lambda g, b, i, j: (b, i, g))),
        "lse": spec((rows, groups, len(settings.heads), tokens), lambda g, b, i, j: (b, g, 0, i)),
        **dict.fromkeys(("tables", "reverse_tables"), spec(table, lambda g, b, i, j: (0, g, 0, 0))),
        "dtables": spec((2, groups, LANES, 2 * L), lambda g, b, i, j: (0, g, 0, 0)),
    }
    scratch: dict[str, Any] = {"columns": pltpu.VMEM((tokens, LANES), jnp.int32)}
    scratch |= dict.fromkeys(sums, pltpu.VMEM((L, LANES), jnp.float32))
    # Gradients of tables are summed over rows, which therefore run in order.
    semantics: list[Any] = ["parallel", "arbitrary" if "dtables" in outputs else "parallel"]
    if chunked:
        qkv = inputs.pop("qkv")
        inputs |= {"key_ids": inputs["ids"], "qkv0": qkv, "qkv1": qkv, "qkv2": qkv}
        if outputs.pop("dqkv", None):
            outputs |= {f"dqkv{n}": jax.ShapeDtypeStruct((B, 1, L, E), qkv.dtype) for n in range(3)}
        scratch["sums"] = pltpu.VMEM((LANES + 2 * SUBLANES, tokens), jnp.float32)
        semantics += ["arbitrary"] * 2
    prefetched = [x for x in scalars if x is not None]

    def run_kernel(*refs: Any) -> None:
        names, n = (*inputs, *outputs, *scratch), len(prefetched)
        here = blocks._replace(chunk=(pl.program_id(2), pl.program_id(3))) if chunked else blocks
        kernel(Scalars(*refs[:n]), dict(zip(names, refs[n:], strict=True)), settings, here)

    results = pl.pallas_call(
        run_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
            grid=(E // LANES // groups, B // rows, blocks.chunks, blocks.chunks)[: len(semantics)],
            in_specs=[specs[name] for name in inputs],
            out_specs=[specs[name] for name in outputs],
            scratch_shapes=[*scratch.values()],
        ),
        out_shape=[*outputs.values()],
        interpret=settings.interpret,
        name=f"attention_{kernel.__name__.removesuffix('_kernel')}",
        compiler_params=pltpu.CompilerParams(dimension_semantics=tuple(semantics), vmem_limit_bytes=100 << 20),
    )(*prefetched, *inputs.values())
    return [jnp.concatenate(results, axis=1)] if "dqkv0" in outputs else results
