"""Blocks of a row in the attention kernel for TPUs, and the operations on them that its parts share."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertjax.model.attention.kernels import MOSAIC_LENGTHS
from bertjax.model.dropout import keep_scores

# Block layout. q, k and v are one array [B, 3, L, H K], and so are their gradients: the products around the kernel
# write and read it without a transpose. A grid step holds whole rows of some heads in VMEM, and loops over its rows,
# over groups of heads, and over blocks of queries. A group is LANES dims, such as two heads of 64 side by side. In the
# products of one head the lanes of the other heads are zero (this costs nothing, since the matrix unit is as wide as a
# group), and the sum of the heads' results has them side by side again. The scores of a head are [keys, queries]: their
# maximum and sum run along sublanes, and statistics are rows [1, queries]. A block of queries visits the blocks of keys
# of its row in turn, except blocks that only contain other sequences. With a window it visits the keys in reach as a
# single block, which is read from the row at a dynamic offset.
#
# Longer rows are cut into chunks: the grid has two more dims, chunks of queries and, inside, chunks of keys. A grid
# step works as above on the queries of one chunk and the keys of another. Sums over keys stay in memory until the next
# chunk of keys, and dk and dv of the whole row until the next chunk of queries. With a window, a long row is instead
# cut into overlapping pieces, which are treated as rows.
LANES = MOSAIC_LENGTHS
HEAD_WIDTHS = 16, 32, 64, LANES
_BLOCK = 512  # maximum queries, and keys, of a block
_UNROLLED = 4  # with a window, unroll up to this many blocks of queries: a single one does not keep the units busy
SUBLANES = 16  # of a bfloat16 tile; offsets of keys are multiples of it
_OPERAND = 1 << 20  # maximum bytes of q, k and v in a grid step, unless a single group has more
LOWEST = float(jnp.finfo(jnp.float32).min)


class Settings(NamedTuple):
    """What the kernel computes; all values are static."""

    head_dim: int
    rate: float = 0.0  # of dropout
    causal: bool = False
    window: int = 0  # tokens seen on either side; 0: all
    alibi: bool = False
    relative: bool = False  # DeBERTa's relative terms
    block: int = 0  # tokens of BigBird's chosen blocks; 0: no blocks
    random: int = 0  # random blocks that a block sees, besides its neighbours and the ends
    chunk: int = 0  # tokens of a row in memory at once; 0: all
    piece: int = 0  # maximum tokens of the pieces of a row with a window; 0: rows are not cut
    length: int = 0  # tokens of the whole row, if these rows are its pieces
    interpret: Any = False  # True or `pltpu.InterpretParams`, for tests without a TPU

    @property
    def heads(self) -> range:
        """The heads of a group."""
        return range(LANES // self.width)

    @property
    def width(self) -> int:
        """Lanes of a head: its dims, padded with zeros until they divide a group."""
        return next(width for width in HEAD_WIDTHS if width >= self.head_dim)

    @property
    def scale(self) -> float:
        """The scale of the scores; with relative terms they are sums of three products."""
        return (self.head_dim * (3 if self.relative else 1)) ** -0.5


class Blocks(NamedTuple):
    """What a grid step holds in memory, and what it computes at once."""

    rows: int
    groups: int
    queries: int
    keys: int
    loop: int  # blocks of keys that a block of queries visits in a chunk
    unrolled: int  # consecutive blocks of queries whose work overlaps
    chunks: int = 1  # of a row
    chunk: tuple[Any, Any] = (0, 0)  # numbers of the grid step's chunk of queries and chunk of keys

    @classmethod
    def choose(cls, settings: Settings, shape: tuple[int, ...], itemsize: int) -> Blocks:
        """Choose the blocks for q, k and v of shape [B, 3, L, E]."""
        B, _, L, E = shape
        if settings.chunk:
            block = LANES * largest(settings.chunk // LANES, lambda n: n * LANES <= _BLOCK)
            return cls(1, 1, block, block, settings.chunk // block, 1, L // settings.chunk)
        groups = largest(E // LANES, lambda n: n * 3 * L * LANES * itemsize <= _OPERAND)
        rows = largest(B, lambda n: n * groups * 3 * L * LANES * itemsize <= _OPERAND)
        block = LANES * largest(L // LANES, lambda n: n * LANES <= _BLOCK)
        # With a window, a larger block of queries reads more keys that only some of the queries see.
        in_reach = LANES + 2 * reach(settings)
        if settings.window and in_reach < L:
            few = min(_UNROLLED, _BLOCK**2 // (in_reach * LANES))
            return cls(rows, groups, LANES, in_reach, 1, largest(L // LANES, lambda n: n <= few))
        return cls(rows, groups, block, block, L // block, 1)

    @property
    def first_queries(self) -> Any:
        """The number of the first block in the chunk of queries."""
        return self.chunk[0] * self.loop

    @property
    def first_keys(self) -> Any:
        """The number of the first block in the chunk of keys."""
        return self.chunk[1] * self.loop

    @property
    def chunk_keys(self) -> Any:
        """The slice of the row for the chunk of keys."""
        size = self.loop * self.keys
        return ... if self.chunks == 1 else pl.ds(pl.multiple_of(self.chunk[1] * size, LANES), size)


def largest(n: int, fits: Callable[[int], bool]) -> int:
    """The largest divisor of n that fits, or 1."""
    return next(d for d in range(n, 0, -1) if n % d == 0 and (d == 1 or fits(d)))


def reach(settings: Settings) -> int:
    """Keys that are read on either side of a block of queries."""
    return -(-settings.window // SUBLANES) * SUBLANES


def product(a: jax.Array, b: jax.Array, over_a: int, over_b: int) -> jax.Array:
    """Contract one dim of each, to float32."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dims = (((over_a,), (over_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32, precision=precision)


def only(head: int, x: jax.Array, axis: int, settings: Settings) -> jax.Array:
    """Set x to zero outside of a head's lanes along `axis`, the dim of a group."""
    if len(settings.heads) == 1:
        return x
    dim = jax.lax.broadcasted_iota(jnp.int32, tuple(LANES if n == axis else 1 for n in range(2)), axis)
    own = (dim >= head * settings.width) & (dim < (head + 1) * settings.width)
    return jnp.where(own, x, jnp.zeros((), x.dtype))


def each_dim(values: list[jax.Array], settings: Settings) -> jax.Array:
    """Repeat each head's row [1, queries] for each of its dims: [LANES, queries]."""
    return jnp.concatenate([jnp.broadcast_to(x, (settings.width, x.shape[1])) for x in values], axis=0)


class Scalars(NamedTuple):
    """Values for each row and head, in the scalar memory."""

    keys: Any  # for dropout, int32 [B]
    heads: Any  # their numbers in the layer, int32 [H]
    slopes: Any  # float32 [H]
    chosen: Any  # the random blocks that the inner blocks see in each head, int32 [H (n - 2) random]
    spans: Any  # the lowest and the highest sequence id of each block, int32 [B blocks 2]
    starts: Any = None  # of pieces: their first positions in the whole row, int32 [B]


class Block(NamedTuple):
    """A block of queries and a block of keys of one row."""

    keys: Any  # slice of the chunk
    row_keys: Any  # slice of the row
    first_i: Any  # int32
    first_j: Any
    i: jax.Array  # positions, int32 [1, queries] and [keys, 1]
    j: jax.Array
    seen: jax.Array  # bool [keys, queries]


def query_slice(number: Any, blocks: Blocks) -> Any:
    """The slice of the chunk for a block of queries."""
    number = number if blocks.chunks == 1 else jax.lax.rem(number, blocks.loop)
    return pl.ds(pl.multiple_of(number * blocks.queries, LANES), blocks.queries)


def make_block(
    number: Any, key_number: Any, row: Any, ids_ref: Any, columns_ref: Any, settings: Settings, blocks: Blocks
) -> Block:
    """The block of queries and the block of keys with these numbers in the row.

    `ids_ref` [rows, 1, L] and this row's `columns_ref` [L, LANES] are the sequence ids of a chunk's queries and keys.
    """
    L, first_i, first_j = ids_ref.shape[-1], number * blocks.queries, key_number * blocks.keys
    if blocks.loop == 1 and blocks.keys < L:
        first_j = jnp.clip(first_i - reach(settings), 0, L - blocks.keys)
    row_keys = keys = pl.ds(pl.multiple_of(first_j, SUBLANES if blocks.loop == 1 else LANES), blocks.keys)
    if blocks.chunks > 1:
        keys = query_slice(key_number, blocks)
    i = first_i + jax.lax.broadcasted_iota(jnp.int32, (1, blocks.queries), 1)
    j = first_j + jax.lax.broadcasted_iota(jnp.int32, (blocks.keys, 1), 0)
    seen = columns_ref[keys, :1] == ids_ref[row, :, query_slice(number, blocks)]
    if settings.window:
        seen &= jnp.abs(i - j) <= settings.window
    if settings.causal:
        seen &= j <= i
    return Block(keys, row_keys, first_i, first_j, i, j, seen)


def id_spans(sequence_ids: jax.Array, block: int) -> jax.Array:
    """The lowest and highest sequence id of each block of the rows, padding being the highest: int32 [B blocks 2]."""
    ids = jnp.where(sequence_ids > 0, sequence_ids, jnp.iinfo(jnp.int32).max).reshape(-1, block)
    return jnp.stack([ids.min(axis=1), ids.max(axis=1)], axis=1).reshape(-1)


def run_loop(count: int, body: Callable[[Any, Any], Any], start: Any = None, unrolled: int = 1, first: Any = 0) -> Any:
    """`jax.lax.fori_loop` that starts at `first` and unrolls.

    The loop counts from 0 without its own unrolling: otherwise it would end on a count that is not its number of
    iterations, which a reader of the compiled schedule would misread.
    """

    def bodies(number: Any, x: Any) -> Any:
        number = number if isinstance(first, int) else first + number
        return functools.reduce(lambda x, part: body(number * unrolled + part, x), range(unrolled), x)

    return bodies(0, start) if count == unrolled else jax.lax.fori_loop(0, count // unrolled, bodies, start)


def if_chunk(chunk: Any, number: int, function: Callable[[], None]) -> None:
    """Call the function if the chunk has this number; for whole rows, whose only chunk is 0, without a condition."""
    if isinstance(chunk, int):
        function()
    else:
        pl.when(chunk == number)(function)


def over_chunks(
    refs: dict[str, Any],
    queries: Any,
    blocks: Blocks,
    start: Any,
    run: Callable[[Any], Any],
    finish: Callable[..., None],
) -> None:
    """Call finish(run(start)); over chunks of keys, use `start` in the first and call `finish` in the last."""
    if blocks.chunks == 1:
        return finish(run(start))
    leaves, tree = jax.tree.flatten(start)
    ends = itertools.accumulate(len(x) for x in reversed(leaves))  # o, whose size is whole tiles, comes first
    places = [pl.ds(end - len(x), len(x)) for x, end in zip(leaves, reversed([*ends]), strict=True)]
    ref, is_first = refs["sums"], blocks.chunk[1] == 0
    carried = [jnp.where(is_first, x, ref[place, queries]) for x, place in zip(leaves, places, strict=True)]
    sums = run(tree.unflatten(carried))
    for x, place in zip(jax.tree.leaves(sums), places, strict=True):
        ref[place, queries] = x
    if_chunk(blocks.chunk[1], blocks.chunks - 1, lambda: finish(sums))


def operand(refs: dict[str, Any], name: str, number: int) -> tuple[Any, int]:
    """The ref and index of q, k or v, or of its gradient: they share one array, or with chunks have one each."""
    return (refs[name], number) if name in refs else (refs[f"{name}{number}"], 0)


def group_slice(group: Any) -> Any:
    """The dims of a group of heads."""
    return pl.ds(pl.multiple_of(group * LANES, LANES), LANES)


def head_gradients(
    head: int,
    s: jax.Array,
    lse: jax.Array,
    v: jax.Array,
    do: jax.Array,
    products: jax.Array,
    block: Block,
    drop: Callable[[int, Block, jax.Array], jax.Array],
    settings: Settings,
) -> tuple[jax.Array, jax.Array]:
    """Compute a head's ds [keys, queries] and dv [keys, LANES]; `products` is do o in each dim of the group."""
    # Here p is p / (1 - rate), and delta is delta (1 - rate): this saves a multiplication.
    own = products[head * settings.width : (head + 1) * settings.width]
    delta = jnp.sum(own, axis=0, keepdims=True) * (1.0 - settings.rate)
    p = jnp.exp(s - (lse + jnp.log(1.0 - settings.rate)))
    dv = product(drop(head, block, p).astype(v.dtype), do, 1, 0)
    return (p * (drop(head, block, product(v, do, 1, 1)) - delta)).astype(v.dtype), dv


def each_group(
    settings: Settings, blocks: Blocks, refs: dict[str, Any], scalars: Scalars, compute: Callable[..., None]
) -> None:
    """Call compute(row, group, first_head, slope, drop, over_keys) for each row and group of heads of a grid step.

    `first_head` is the number of the group's first head among the device's, slope(head) is ALiBi's or None, and
    drop(head, block, x) applies the dropout mask to x, [keys, queries]. over_keys(number, body, start) folds
    body(key_number, x) over the blocks of keys that a block of queries visits. It skips blocks that contain only other
    sequences or, with `causal`, only later tokens.
    """
    ids_ref, columns_ref = refs["ids"], refs["columns"]
    chunk, first_group, first_row = ids_ref.shape[-1], pl.program_id(0) * blocks.groups, pl.program_id(1) * blocks.rows
    length = settings.length or chunk * blocks.chunks

    def run_row(row: Any, _: None) -> None:
        key = scalars.keys[first_row + row].astype(jnp.uint32)
        columns_ref[...] = jnp.broadcast_to(refs.get("key_ids", ids_ref)[row], (LANES, chunk)).T
        first_block = (first_row + row) * (blocks.loop * blocks.chunks)
        offset = None if scalars.starts is None else scalars.starts[first_row + row].astype(jnp.uint32)

        def over_keys(number: Any, body: Callable[[Any, Any], Any], start: Any) -> Any:
            def if_seen(key_number: Any, x: Any) -> Any:
                queries, keys = 2 * (first_block + number), 2 * (first_block + key_number)
                seen = scalars.spans[keys] <= scalars.spans[queries + 1]
                seen &= scalars.spans[queries] <= scalars.spans[keys + 1]
                if settings.causal:
                    seen &= key_number <= number
                if settings.window and blocks.chunks > 1:
                    seen &= (jnp.abs(key_number - number) - 1) * blocks.keys < settings.window
                return jax.lax.cond(seen, lambda: body(key_number, x), lambda: x)

            always = blocks.loop * blocks.chunks == 1
            return run_loop(blocks.loop, body if always else if_seen, start, first=blocks.first_keys)

        def run_group(group: Any, _: None) -> None:
            first = (first_group + group) * len(settings.heads)

            def slope(head: int) -> Any:
                return scalars.slopes[first + head] if settings.alibi else None

            def drop(head: int, block: Block, x: jax.Array) -> jax.Array:
                if not settings.rate:
                    return x
                number = scalars.heads[first + head].astype(jnp.uint32)
                i, j = block.i.astype(jnp.uint32), block.j.astype(jnp.uint32)
                if offset is not None:
                    i, j = offset + i, offset + j
                return jnp.where(keep_scores(number, i, j, length, key, settings.rate), x, 0.0)

            compute(row, group, first, slope, drop, over_keys)

        jax.lax.fori_loop(0, blocks.groups, run_group, None)

    jax.lax.fori_loop(0, blocks.rows, run_row, None)
