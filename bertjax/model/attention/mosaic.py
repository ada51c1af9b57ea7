"""Attention on a TPU as one Pallas kernel with its backward pass: dropout inside, nothing of [L, L] in main memory.

With s_ij = q_i k_j / sqrt(K) where token i sees token j, less slope |i - j| with ALiBi, and nothing elsewhere:

    forward    lse_i = log sum_j exp(s_ij), p_ij = exp(s_ij - lse_i), o_i = sum_j r_ij v_j; block by block of keys, with
               sums of exp(s_ij - the largest so far) that a larger one scales down
    dropout    r_ij = p_ij / (1 - rate) where kept, else 0; kept by the hash of model/dropout.py, to the bit
    backward   dv_j = sum_i r_ij do_i, delta_i = do_i o_i (which is sum_j r_ij do_i v_j)
               ds_ij = r_ij (do_i v_j) - p_ij delta_i
               dq_i = sum_j ds_ij k_j / sqrt(K), dk_j = sum_i ds_ij q_i / sqrt(K)

The backward pass keeps q, k, v, o and lse, and computes p and the mask again. Scores, softmax and sums are float32
whatever the dtype of q; the factors of products have the dtype of q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention.kernels import FUSED_ATTENTION, MOSAIC_LENGTHS, QKV, TOKENS, per_device
from bertjax.model.dropout import ATTENTION_PROBS, fold, keep_scores

# Block layout. q, k and v are one array [B, 3, L, H K], and so are their gradients: products around the kernel write
# and read it without a transpose. A grid step has whole rows of some heads in the chip's own memory, and loops over its
# rows and groups of heads, then over blocks of queries. A group is LANES dims: two heads of 64 side by side. The
# factors of one head's products are zero in the lanes of the others (the matrix unit is as wide as a group, so this
# costs nothing), and the sum of the heads' results has them side by side again. Scores of one head are [keys, queries]:
# their maximum and sum run along sublanes, and statistics are rows [1, queries]. A block of queries meets the keys of
# its row block by block, or with a window those in reach as one block, read from the row at a dynamic offset.
LANES = MOSAIC_LENGTHS
_BLOCK = 512  # most queries, and keys, at once
_UNROLLED = 4  # most blocks of queries in a row under a window, each of which is too small to keep the units busy
_SUBLANES = 16  # offsets of keys are multiples of this: a tile of bfloat16 has as many
_OPERAND = 1 << 20  # most bytes of q, k and v in a grid step, unless a group has more
_LOWEST = float(jnp.finfo(jnp.float32).min)


class Settings(NamedTuple):
    """What the kernel computes."""

    head_dim: int
    rate: float = 0.0  # of dropout
    causal: bool = False
    window: int = 0  # tokens seen on either side; 0: all
    alibi: bool = False
    interpret: Any = False  # True or `pltpu.InterpretParams`, for tests without a TPU

    @property
    def heads(self) -> range:
        """The heads of a group."""
        return range(LANES // self.head_dim)


class Blocks(NamedTuple):
    """What a grid step has in memory, and what it computes at once."""

    rows: int
    groups: int
    queries: int
    keys: int
    loop: int  # blocks of keys that a block of queries meets
    unrolled: int  # blocks of queries, one after the other, whose work overlaps

    @classmethod
    def choose(cls, settings: Settings, shape: tuple[int, ...], itemsize: int) -> Blocks:
        """For q, k and v of a shape [B, 3, L, E]."""
        B, _, L, E = shape
        groups = _largest(E // LANES, lambda n: n * 3 * L * LANES * itemsize <= _OPERAND)
        rows = _largest(B, lambda n: n * groups * 3 * L * LANES * itemsize <= _OPERAND)
        block = LANES * _largest(L // LANES, lambda n: n * LANES <= _BLOCK)
        # Under a window more queries in a block have more keys that only some of them see.
        in_reach = LANES + 2 * _reach(settings)
        if settings.window and in_reach < L:
            few = min(_UNROLLED, _BLOCK**2 // (in_reach * LANES))
            return cls(rows, groups, LANES, in_reach, 1, _largest(L // LANES, lambda n: n <= few))
        return cls(rows, groups, block, block, L // block, 1)


class Scalars(NamedTuple):
    """What differs between rows and heads, in the memory of scalars."""

    keys: Any  # of dropout, int32 [B]
    heads: Any  # their numbers in the layer, int32 [H]
    slopes: Any  # float32 [H]


def mosaic_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    slopes: tuple[float, ...],
    settings: Settings,
) -> jax.Array:
    """Run the kernel on each device's rows and heads: q, k, v [B, L, H, K], sequence_ids int32 [B, L] -> [B, L, H, K].

    L is a multiple of LANES, K one of MOSAIC_HEAD_DIMS. Without `dropout_keys`, uint32 [B], the rate has to be 0.
    """
    B, _, H, _ = q.shape
    keys = jnp.zeros(B, jnp.uint32) if dropout_keys is None else fold(dropout_keys, ATTENTION_PROBS)
    per_head = jnp.arange(H, dtype=jnp.int32), jnp.asarray(slopes or (0.0,) * H, jnp.float32)
    operands = (q, QKV), (k, QKV), (v, QKV), (sequence_ids, TOKENS), (keys, TOKENS[:1])
    return per_device(functools.partial(_on_device, settings), *operands, *((x, ("act_heads",)) for x in per_head))


def _on_device(
    settings: Settings,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    keys: jax.Array,
    heads: jax.Array,
    slopes: jax.Array,
) -> jax.Array:
    B, L, H, K = q.shape
    missing = -H % len(settings.heads)  # heads, of zeros, in the last group
    if missing:
        q, k, v = (jnp.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)]) for x in (q, k, v))
        heads, slopes = (jnp.pad(x, (0, missing)) for x in (heads, slopes))
    # Stacked as `project` has split them: the compiler removes both, and the transpose is a layout of the product.
    qkv = jnp.stack([x.reshape(B, L, -1) for x in (q, k, v)], axis=2).swapaxes(1, 2)
    scalars = Scalars(jax.lax.bitcast_convert_type(keys, jnp.int32), heads, slopes)
    o = cast(jax.Array, _attention(qkv, sequence_ids, scalars, settings))
    return o.reshape(B, L, -1, K)[:, :, :H]


def _largest(n: int, fits: Callable[[int], bool]) -> int:
    """The largest divisor of n that fits, or 1."""
    return next(d for d in range(n, 0, -1) if n % d == 0 and (d == 1 or fits(d)))


def _reach(settings: Settings) -> int:
    """Keys that are read on either side of a block of queries."""
    return -(-settings.window // _SUBLANES) * _SUBLANES


def _product(a: jax.Array, b: jax.Array, over_a: int, over_b: int) -> jax.Array:
    """The sum over a dim of each, float32."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((over_a,), (over_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32, precision=precision)


def _only(head: int, x: jax.Array, axis: int, settings: Settings) -> jax.Array:
    """x with zeros where dim `axis`, a group's, is not of a head of it."""
    if len(settings.heads) == 1:
        return x
    dim = jax.lax.broadcasted_iota(jnp.int32, tuple(LANES if n == axis else 1 for n in range(2)), axis)
    own = (dim >= head * settings.head_dim) & (dim < (head + 1) * settings.head_dim)
    return jnp.where(own, x, jnp.zeros((), x.dtype))


def _each_dim(values: list[jax.Array], settings: Settings) -> jax.Array:
    """A head's row [1, queries] for each of its dims: [LANES, queries]."""
    return jnp.concatenate([jnp.broadcast_to(x, (settings.head_dim, x.shape[1])) for x in values], axis=0)


class Block(NamedTuple):
    """A block of queries and a block of keys of one row."""

    keys: Any  # slice of the row
    i: jax.Array  # positions, int32 [1, queries] and [keys, 1]
    j: jax.Array
    seen: jax.Array  # bool [keys, queries]


def _queries(number: Any, blocks: Blocks) -> Any:
    """The slice of the row that a block of queries is."""
    return pl.ds(pl.multiple_of(number * blocks.queries, LANES), blocks.queries)


def _block(
    number: Any, key_number: Any, row: Any, ids_ref: Any, columns_ref: Any, settings: Settings, blocks: Blocks
) -> Block:
    L, first_i, first_j = ids_ref.shape[-1], number * blocks.queries, key_number * blocks.keys
    if blocks.loop == 1 and blocks.keys < L:
        first_j = jnp.clip(first_i - _reach(settings), 0, L - blocks.keys)
    keys = pl.ds(pl.multiple_of(first_j, _SUBLANES if blocks.loop == 1 else LANES), blocks.keys)
    i = first_i + jax.lax.broadcasted_iota(jnp.int32, (1, blocks.queries), 1)
    j = first_j + jax.lax.broadcasted_iota(jnp.int32, (blocks.keys, 1), 0)
    seen = columns_ref[keys, :1] == ids_ref[row, :, _queries(number, blocks)]
    if settings.window:
        seen &= jnp.abs(i - j) <= settings.window
    if settings.causal:
        seen &= j <= i
    return Block(keys, i, j, seen)


def _scores(k: jax.Array, q: jax.Array, block: Block, slope: Any) -> jax.Array:
    """float32 [keys, queries]; `slope` is None without ALiBi."""
    s = _product(k, q, 1, 1)
    if slope is not None:
        s -= slope * jnp.abs(block.i - block.j).astype(jnp.float32)
    return jnp.where(block.seen, s, _LOWEST)


def _each_group(
    settings: Settings,
    blocks: Blocks,
    ids_ref: Any,
    columns_ref: Any,
    scalars: tuple[Any, ...],
    compute: Callable[..., None],
) -> None:
    """Call compute(row, group, slope, drop) for each row and group of heads of a grid step.

    slope(head) is ALiBi's or None, and drop(head, block, x) is x, [keys, queries], with zeros where dropout has them.
    """
    keys_ref, heads_ref, slopes_ref = scalars
    L, first_row, first_group = ids_ref.shape[-1], pl.program_id(0) * blocks.rows, pl.program_id(1) * blocks.groups

    def each_row(row: Any, _: None) -> None:
        key = keys_ref[first_row + row].astype(jnp.uint32)
        columns_ref[...] = jnp.broadcast_to(ids_ref[row], (LANES, L)).T

        def each_group(group: Any, _: None) -> None:
            first = (first_group + group) * len(settings.heads)

            def slope(head: int) -> Any:
                return slopes_ref[first + head] if settings.alibi else None

            def drop(head: int, block: Block, x: jax.Array) -> jax.Array:
                if not settings.rate:
                    return x
                number = heads_ref[first + head].astype(jnp.uint32)
                i, j = block.i.astype(jnp.uint32), block.j.astype(jnp.uint32)
                return jnp.where(keep_scores(number, i, j, L, key, settings.rate), x, 0.0)

            compute(row, group, slope, drop)

        jax.lax.fori_loop(0, blocks.groups, each_group, None)

    jax.lax.fori_loop(0, blocks.rows, each_row, None)


def _forward_kernel(*refs: Any, settings: Settings, blocks: Blocks) -> None:
    *scalars, ids_ref, qkv_ref, o_ref, lse_ref, columns_ref = refs

    def compute(row: Any, group: Any, slope: Callable, drop: Callable) -> None:
        lanes = pl.ds(pl.multiple_of(group * LANES, LANES), LANES)

        def each_block(number: Any, _: None) -> None:
            queries = _queries(number, blocks)
            q = qkv_ref[row, 0, queries, lanes] * settings.head_dim**-0.5

            def each_key_block(key_number: Any, sums: tuple[Any, ...]) -> tuple[Any, ...]:
                ms, totals, o = sums
                block = _block(number, key_number, row, ids_ref, columns_ref, settings, blocks)
                k, v = (qkv_ref[row, n, block.keys, lanes] for n in (1, 2))
                v_t, new_ms, new_totals, shrinks, outs = v.T, [], [], [], []
                for head in settings.heads:
                    s = _scores(k, _only(head, q, 1, settings), block, slope(head))
                    m = jnp.maximum(ms[head], jnp.max(s, axis=0, keepdims=True))
                    e = jnp.exp(s - m)
                    shrinks.append(jnp.exp(ms[head] - m))
                    new_ms.append(m)
                    new_totals.append(totals[head] * shrinks[-1] + jnp.sum(e, axis=0, keepdims=True))
                    outs.append(_product(_only(head, v_t, 0, settings), drop(head, block, e).astype(v.dtype), 1, 0))
                return tuple(new_ms), tuple(new_totals), o * _each_dim(shrinks, settings) + sum(outs[1:], outs[0])

            m, total, o = (jnp.full((n, blocks.queries), x) for n, x in ((1, _LOWEST), (1, 0.0), (LANES, 0.0)))
            start = (m,) * len(settings.heads), (total,) * len(settings.heads), o
            ms, totals, o = _loop(blocks.loop, each_key_block, start)
            shares = [1.0 / (total * (1.0 - settings.rate)) for total in totals]
            o_ref[row, queries, lanes] = (o * _each_dim(shares, settings)).T.astype(o_ref.dtype)
            lse_ref[row, group, :, queries] = jnp.concatenate(ms) + jnp.log(jnp.concatenate(totals))

        _loop(ids_ref.shape[-1] // blocks.queries, each_block, unrolled=blocks.unrolled)

    _each_group(settings, blocks, ids_ref, columns_ref, tuple(scalars), compute)


def _backward_kernel(*refs: Any, settings: Settings, blocks: Blocks) -> None:
    *scalars, ids_ref, qkv_ref, o_ref, do_ref, lse_ref, d_ref, columns_ref, dk_ref, dv_ref = refs
    scale, K = settings.head_dim**-0.5, settings.head_dim

    def compute(row: Any, group: Any, slope: Callable, drop: Callable) -> None:
        lanes = pl.ds(pl.multiple_of(group * LANES, LANES), LANES)
        dk_ref[...] = jnp.zeros_like(dk_ref)
        dv_ref[...] = jnp.zeros_like(dv_ref)

        def each_block(number: Any, _: None) -> None:
            queries = _queries(number, blocks)
            q = qkv_ref[row, 0, queries, lanes] * scale
            do, o = do_ref[row, queries, lanes], o_ref[row, queries, lanes]
            products = (do.astype(jnp.float32) * o.astype(jnp.float32)).T

            def each_key_block(key_number: Any, dq: jax.Array) -> jax.Array:
                block = _block(number, key_number, row, ids_ref, columns_ref, settings, blocks)
                k, v = (qkv_ref[row, n, block.keys, lanes] for n in (1, 2))
                k_t, dqs, dk, dv = k.T, [dq], [], []
                for head in settings.heads:
                    # p / (1 - rate) in place of p, delta (1 - rate) in place of delta: one multiplication less.
                    delta = jnp.sum(products[head * K : (head + 1) * K], axis=0, keepdims=True) * (1.0 - settings.rate)
                    lse = lse_ref[row, group, head : head + 1, queries] + jnp.log(1.0 - settings.rate)
                    own_q, own_do = (_only(head, x, 1, settings) for x in (q, do))
                    p = jnp.exp(_scores(k, own_q, block, slope(head)) - lse)
                    dv.append(_product(drop(head, block, p).astype(v.dtype), own_do, 1, 0))
                    ds = (p * (drop(head, block, _product(v, own_do, 1, 1)) - delta)).astype(q.dtype)
                    dk.append(_product(ds, own_q, 1, 0))
                    dqs.append(_product(_only(head, k_t, 0, settings), ds, 1, 0))
                dk_ref[block.keys] += sum(dk[1:], dk[0])
                dv_ref[block.keys] += sum(dv[1:], dv[0])
                return sum(dqs[1:], dqs[0])

            dq = _loop(blocks.loop, each_key_block, jnp.zeros((LANES, blocks.queries), jnp.float32))
            d_ref[row, 0, queries, lanes] = (dq.T * scale).astype(d_ref.dtype)

        _loop(ids_ref.shape[-1] // blocks.queries, each_block, unrolled=blocks.unrolled)
        d_ref[row, 1, :, lanes] = dk_ref[...].astype(d_ref.dtype)
        d_ref[row, 2, :, lanes] = dv_ref[...].astype(d_ref.dtype)

    _each_group(settings, blocks, ids_ref, columns_ref, tuple(scalars), compute)


def _loop(count: int, body: Callable[[Any, Any], Any], start: Any = None, unrolled: int = 1) -> Any:
    """`jax.lax.fori_loop`; its own unrolling ends on another count, which a reader of the schedule would misread."""

    def bodies(number: Any, x: Any) -> Any:
        return functools.reduce(lambda x, part: body(number * unrolled + part, x), range(unrolled), x)

    return bodies(0, start) if count == unrolled else jax.lax.fori_loop(0, count // unrolled, bodies, start)


def _call(
    kernel: Callable[..., None],
    settings: Settings,
    scalars: Scalars,
    arrays: tuple[jax.Array, ...],
    results: tuple[jax.ShapeDtypeStruct, ...],
    sums: int,
) -> list[jax.Array]:
    """Run a kernel with so many arrays of float32 sums over blocks; `arrays` begin with ids [B, 1, L] and q, k, v."""
    B, _, L, E = arrays[1].shape
    blocks = Blocks.choose(settings, arrays[1].shape, arrays[1].dtype.itemsize)
    rows, width = blocks.rows, blocks.groups * LANES

    def spec(array: Any) -> pl.BlockSpec:
        match array.shape:
            case (_, 1, _):  # ids
                return pl.BlockSpec((rows, 1, L), lambda b, g, *_: (b, 0, 0))
            case (_, _, _):  # o and its gradient
                return pl.BlockSpec((rows, L, width), lambda b, g, *_: (b, 0, g))
            case (_, 3, length, _) if length == L:  # q, k and v, and their gradients
                return pl.BlockSpec((rows, 3, L, width), lambda b, g, *_: (b, 0, 0, g))
        return pl.BlockSpec((rows, blocks.groups, len(settings.heads), L), lambda b, g, *_: (b, g, 0, 0))  # lse

    return pl.pallas_call(
        functools.partial(kernel, settings=settings, blocks=blocks),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(B // rows, E // width),
            in_specs=[spec(x) for x in arrays],
            out_specs=[spec(x) for x in results],
            scratch_shapes=[pltpu.VMEM((L, LANES), jnp.int32), *[pltpu.VMEM((L, LANES), jnp.float32)] * sums],
        ),
        out_shape=results,
        interpret=settings.interpret,
        name=f"attention{kernel.__name__.removesuffix('_kernel')}",
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=100 << 20),
    )(*scalars, *arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, settings: Settings) -> jax.Array:
    """[B, 3, L, E] -> [B, L, E]."""
    return _run_forward(qkv, sequence_ids, scalars, settings)[0]


def _run_forward(qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, settings: Settings) -> list[jax.Array]:
    """o [B, L, E] and lse, float32 [B, groups, heads of a group, L]."""
    B, _, L, E = qkv.shape
    o = jax.ShapeDtypeStruct((B, L, E), qkv.dtype)
    lse = jax.ShapeDtypeStruct((B, E // LANES, len(settings.heads), L), jnp.float32)
    return _call(_forward_kernel, settings, scalars, (sequence_ids[:, None], qkv), (o, lse), sums=0)


def _forward(qkv: jax.Array, sequence_ids: jax.Array, scalars: Scalars, settings: Settings) -> tuple[Any, Any]:
    o, lse = (checkpoint_name(x, FUSED_ATTENTION) for x in _run_forward(qkv, sequence_ids, scalars, settings))
    return o, (qkv, sequence_ids, scalars, o, lse)


def _backward(settings: Settings, residuals: tuple[Any, ...], do: jax.Array) -> tuple[jax.Array, None, None]:
    qkv, sequence_ids, scalars, o, lse = residuals
    arrays, result = (sequence_ids[:, None], qkv, o, do, lse), jax.ShapeDtypeStruct(qkv.shape, qkv.dtype)
    return _call(_backward_kernel, settings, scalars, arrays, (result,), sums=2)[0], None, None


_attention.defvjp(_forward, _backward)
