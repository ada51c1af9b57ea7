"""BigBird's block-sparse attention (block_sparse.py) as kernels for TPUs; formulas and layout as in mosaic.py.

A tile of LANES queries, which is a whole number of blocks, is multiplied once with all keys that any of its blocks
sees: both ends of the row, the tile's blocks and their neighbours, and the random blocks of each, all read as pieces of
the row. A mask leaves each block the keys that it sees. The two end blocks see the whole row: their queries form one
more tile, which is multiplied with the whole row. It comes last and overwrites what the other tiles wrote for the ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bertjax.model.attention.mosaic_blocks import (
    LANES,
    LOWEST,
    Block,
    Blocks,
    Scalars,
    Settings,
    each_group,
    group_slice,
    head_gradients,
    only,
    product,
)


class _Row(NamedTuple):
    """A row in a kernel, for a group of heads: the keys for each tile of queries."""

    refs: dict[str, Any]
    row: Any
    chosen_ref: Any
    first_head: Any
    settings: Settings

    @property
    def length(self) -> int:
        return self.refs["columns"].shape[0]

    def pieces(self, tile: Any, head: int) -> tuple[list[Any], Block]:
        """The slices of the row with the keys for a tile of queries in a head, and the mask of what each query sees."""
        block, random = self.settings.block, self.settings.random
        count, in_tile = self.length // block, LANES // block
        lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        own = tile * in_tile + jax.lax.div(lane, jnp.int32(block))  # the blocks of the queries
        inner, ids = (own > 0) & (own < count - 1), self.refs["ids"][self.row, :, tile_slice(tile)]
        numbers: list[tuple[Any, jax.Array]] = [(0, inner), (count - 1, inner)]
        for beside in range(-1, in_tile + 1):
            number = tile * in_tile + beside
            near = (jnp.abs(own - number) <= 1) & (number > 0) & (number < count - 1)
            numbers.append((jnp.clip(number, 0, count - 1), inner & near))
        for part in range(in_tile):
            number = tile * in_tile + part
            row = (self.first_head + head) * (count - 2) + jnp.clip(number - 1, 0, count - 3)
            numbers += [(self.chosen_ref[row * random + n], inner & (own == number)) for n in range(random)]
        slices = [pl.ds(pl.multiple_of(number * block, block), block) for number, _ in numbers]
        pairs = zip(slices, numbers, strict=True)
        seen = [(self.refs["columns"][keys, :1] == ids) & visible for keys, (_, visible) in pairs]
        place = jax.lax.broadcasted_iota(jnp.int32, (block, 1), 0)
        j = jnp.concatenate([number * block + place for number, _ in numbers], axis=0)
        i = tile * LANES + lane
        return slices, Block(None, None, tile * LANES, None, i, j, jnp.concatenate(seen, axis=0))

    def ends(self) -> Block:
        """The tile of the ends, the first and the last block, with the whole row as its keys."""
        last = self.length - LANES
        lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
        j = jax.lax.broadcasted_iota(jnp.int32, (self.length, 1), 0)
        i = jnp.where(lane < self.settings.block, lane, last + lane)
        ids = self.both(lambda tile: self.refs["ids"][self.row, :, tile], 1)
        seen = (self.refs["columns"][:, :1] == ids) & (
            (lane < self.settings.block) | (lane >= LANES - self.settings.block)
        )
        return Block(None, None, None, None, i, j, seen)

    def both(self, read: Callable[[Any], jax.Array], axis: int) -> jax.Array:
        """Read the tile of the ends from the first and the last tile of the row."""
        place = jax.lax.broadcasted_iota(jnp.int32, (1, LANES) if axis else (LANES, 1), axis)
        first, last = pl.ds(0, LANES), pl.ds(self.length - LANES, LANES)
        return jnp.where(place < self.settings.block, read(first), read(last))

    def write_ends(self, ref: Any, index: Callable[[Any], Any], value: jax.Array, axis: int) -> None:
        """Write the tile of the ends into the first and the last tile of the row, and leave their other blocks."""
        place = jax.lax.broadcasted_iota(jnp.int32, (1, LANES) if axis else (LANES, 1), axis)
        first, last = index(pl.ds(0, LANES)), index(pl.ds(self.length - LANES, LANES))
        ref[first] = jnp.where(place < self.settings.block, value, ref[first])
        ref[last] = jnp.where(place >= LANES - self.settings.block, value, ref[last])


def tile_slice(tile: Any) -> Any:
    """The queries of a tile."""
    return pl.ds(pl.multiple_of(tile * LANES, LANES), LANES)


def _masked_scores(head: int, q: jax.Array, k: jax.Array, block: Block, settings: Settings) -> jax.Array:
    return jnp.where(block.seen, product(k, only(head, q, 1, settings), 1, 1), LOWEST)


def forward_kernel(scalars: Scalars, refs: dict[str, Any], settings: Settings, blocks: Blocks) -> None:
    """Write o and lse."""
    qkv_ref, o_ref, lse_ref = refs["qkv"], refs["o"], refs["lse"]

    def compute(row: Any, group: Any, first_head: Any, _: Callable, drop: Callable, __: Callable) -> None:
        lanes, whole = group_slice(group), _Row(refs, row, scalars.chosen, first_head, settings)

        def attend(q: jax.Array, keys: Callable[[int], tuple[jax.Array, jax.Array, Block]]) -> tuple[Any, Any]:
            outs, lses = [], []
            for head in settings.heads:
                k, v, block = keys(head)
                s = _masked_scores(head, q * settings.scale, k, block, settings)
                m = jnp.max(s, axis=0, keepdims=True)
                e = jnp.exp(s - m)
                total = jnp.sum(e, axis=0, keepdims=True)
                out = product(only(head, v.T, 0, settings), drop(head, block, e).astype(v.dtype), 1, 0)
                outs.append(out * (1.0 / (total * (1.0 - settings.rate))))
                lses.append(m + jnp.log(total))
            return sum(outs[1:], outs[0]).T.astype(o_ref.dtype), jnp.concatenate(lses)

        def run_tile(tile: Any, _: None) -> None:
            queries = tile_slice(tile)

            def keys(head: int) -> tuple[jax.Array, jax.Array, Block]:
                slices, block = whole.pieces(tile, head)
                k, v = (jnp.concatenate([qkv_ref[row, n, keys, lanes] for keys in slices]) for n in (1, 2))
                return k, v, block

            o_ref[row, queries, lanes], lse_ref[row, group, :, queries] = attend(qkv_ref[row, 0, queries, lanes], keys)

        jax.lax.fori_loop(0, whole.length // LANES, run_tile, None)
        block = whole.ends()
        q = whole.both(lambda tile: qkv_ref[row, 0, tile, lanes], 0)
        o, lse = attend(q, lambda _: (qkv_ref[row, 1, :, lanes], qkv_ref[row, 2, :, lanes], block))
        whole.write_ends(o_ref, lambda tile: (row, tile, lanes), o, 0)
        whole.write_ends(lse_ref, lambda tile: (row, group, slice(None), tile), lse, 1)

    each_group(settings, blocks, refs, scalars, compute)


def backward_kernel(scalars: Scalars, refs: dict[str, Any], settings: Settings, blocks: Blocks) -> None:
    """Write the gradients of q, k and v."""
    qkv_ref, d_ref, dk_ref, dv_ref = (refs[name] for name in ("qkv", "dqkv", "dk", "dv"))

    def compute(row: Any, group: Any, first_head: Any, _: Callable, drop: Callable, __: Callable) -> None:
        lanes, whole = group_slice(group), _Row(refs, row, scalars.chosen, first_head, settings)
        dk_ref[...] = jnp.zeros_like(dk_ref)
        dv_ref[...] = jnp.zeros_like(dv_ref)

        def gradients(
            read: Callable[[Callable, int], jax.Array], keys: Callable[[int], tuple[list[Any], Block]]
        ) -> Any:
            """Return the gradient of the queries that `read` selects; add the keys' and values' to sums."""
            q = read(lambda tile: qkv_ref[row, 0, tile, lanes], 0) * settings.scale
            do, o = (read(lambda tile, name=name: refs[name][row, tile, lanes], 0) for name in ("do", "o"))
            lses = read(lambda tile: refs["lse"][row, group, :, tile], 1)
            products, dqs = (do.astype(jnp.float32) * o.astype(jnp.float32)).T, []
            for head in settings.heads:
                slices, block = keys(head)
                k, v = (jnp.concatenate([qkv_ref[row, n, keys, lanes] for keys in slices]) for n in (1, 2))
                own_q, own_do = (only(head, x, 1, settings) for x in (q, do))
                s = _masked_scores(head, q, k, block, settings)
                ds, dv = head_gradients(head, s, lses[head : head + 1], v, own_do, products, block, drop, settings)
                dk = product(ds, own_q, 1, 0)
                dqs.append(product(only(head, k.T, 0, settings), ds, 1, 0))
                start = 0
                for piece in slices:
                    dk_ref[piece] += dk[start : start + piece.size]
                    dv_ref[piece] += dv[start : start + piece.size]
                    start += piece.size
            return (sum(dqs[1:], dqs[0]).T * settings.scale).astype(d_ref.dtype)

        def run_tile(tile: Any, _: None) -> None:
            queries = tile_slice(tile)
            d_ref[row, 0, queries, lanes] = gradients(
                lambda read, _: read(queries), lambda head: whole.pieces(tile, head)
            )

        jax.lax.fori_loop(0, whole.length // LANES, run_tile, None)
        everything = [pl.ds(0, whole.length)], whole.ends()
        whole.write_ends(d_ref, lambda tile: (row, 0, tile, lanes), gradients(whole.both, lambda _: everything), 0)
        d_ref[row, 1, :, lanes] = dk_ref[...].astype(d_ref.dtype)
        d_ref[row, 2, :, lanes] = dv_ref[...].astype(d_ref.dtype)

    each_group(settings, blocks, refs, scalars, compute)
