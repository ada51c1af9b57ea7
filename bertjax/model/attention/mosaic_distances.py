"""Relative terms of DeBERTa in the attention kernel for TPUs: rows of products that are rolled along the diagonal.

With tables Kr and Qr of distances (relative.py), scaled like the scores, and d = i - j:

    forward    s_ij += q_i Kr_d + k_j Qr_d
    backward   dq_i += sum_j ds_ij Kr_d, dKr_d = sum_i ds_ij q_i with j = i - d, and the same for k and Qr

LANES adjacent tokens x and X adjacent tokens y are LANES + X - 1 distances apart. So each term comes from a product
P = x T' with that many rows of a table, and one more, of which token r of x needs X, from number LANES - 1 - r on:

    term_rj = P[r, LANES - 1 - r + j]: row r of P rolled to the right by r + X + 1 of its X + LANES places

A strided roll does this for all rows at once. Its shift to the right can only grow from row to row, so the backward
pass, from ds to the gradient of P, has y and the distances in reverse order: dP[r, u] = ds[r, u - r - 1], with zeros
beyond the end of ds. Products with a reversed identity reverse ds exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention.mosaic_blocks import LANES, Block, Settings, only, product

BY_QUERIES, BY_KEYS = range(2)  # indices of the two tables, by what they are multiplied with


def ordered_tables(
    by_queries: jax.Array, by_keys: jax.Array, table_row: Callable[[np.ndarray], np.ndarray], length: int, scale: float
) -> tuple[jax.Array, jax.Array]:
    """Order the vectors of all distances in rows of `length` tokens for the kernel: [H, S, K] -> [H, 2 L, K] each.

    Those for queries run from distance L - 1 down; those for keys run from 1 - L up, and are multiplied by the scale.
    """
    ascending = np.arange(1 - length, length + 1)
    return (
        jnp.take(by_queries, table_row(-ascending), axis=1),
        jnp.take(by_keys * scale, table_row(ascending), axis=1),
    )


class Tables(NamedTuple):
    """The vectors of distances of a group of heads, in VMEM."""

    ref: Any  # [2, groups, 2 L, LANES], in reverse order in the backward pass
    group: Any
    settings: Settings

    def _starts(self, block: Block, table: int) -> tuple[Any, Any]:
        """The first of the tokens that are multiplied with a table, and the first of the tokens at those distances."""
        return (block.first_i, block.first_j) if table == BY_QUERIES else (block.first_j, block.first_i)

    def terms(self, q: jax.Array, k: jax.Array, block: Block) -> jax.Array:
        """Compute the relative terms of a head's scores, float32 [keys, queries].

        q [queries, LANES], scaled, and k [keys, LANES] are zero in the lanes of other heads.
        """
        length = self.ref.shape[2] // 2

        def rolled_terms(table: int, x: jax.Array, width: int) -> jax.Array:
            """Compute the terms of the tokens x, [tokens of x, width], LANES tokens at a time."""
            own, other = self._starts(block, table)
            parts = []
            for part in range(0, len(x), LANES):
                start = pl.multiple_of(length - LANES - own - part + other, LANES)
                vectors = self.ref[table, self.group, pl.ds(start, width + LANES)]
                products = product(x[part : part + LANES], vectors, 1, 1)
                parts.append(pltpu.roll(products, width + 1, 1, stride=1, stride_axis=0)[:, :width])
            return jnp.concatenate(parts, axis=0)

        return rolled_terms(BY_QUERIES, q, len(k)).T + rolled_terms(BY_KEYS, k, len(q))

    def gradients(
        self, head: int, ds: jax.Array, q: jax.Array, k: jax.Array, block: Block, sums_ref: Any
    ) -> tuple[jax.Array, jax.Array]:
        """Compute what a head's ds [keys, queries] adds to dq, [queries, LANES], and dk, [keys, LANES], by these terms.

        q and k are as in `terms`. Adds the gradients of the tables to `sums_ref`, float32 [2, groups, LANES, 2 L], with
        the distances in reverse order.
        """
        length = self.ref.shape[2] // 2
        size = jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
        reverse = (size + jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1) == LANES - 1).astype(ds.dtype)

        def spread(table: int, x: jax.Array, tile: Callable[[int, int], jax.Array], width: int) -> jax.Array:
            own, other = self._starts(block, table)
            x_t, parts = x.T, []
            for part in range(0, len(x), LANES):
                reverse_ds = [tile(part, rest) for rest in reversed(range(0, width, LANES))]
                ended = jnp.zeros((LANES, LANES), jnp.float32)
                wide = jnp.concatenate([*reverse_ds, ended], axis=1)
                dp = pltpu.roll(wide, 1, 1, stride=1, stride_axis=0).astype(x.dtype)
                start = pl.multiple_of(length + own + part - other - width, LANES)
                vectors = self.ref[table, self.group, pl.ds(start, width + LANES)]
                parts.append(only(head, product(dp, vectors, 1, 0), 1, self.settings))
                sums_ref[table, self.group, :, pl.ds(start, width + LANES)] += product(
                    x_t[:, part : part + LANES], dp, 1, 0
                )
            return jnp.concatenate(parts, axis=0)

        def tile_of_queries(part: int, rest: int) -> jax.Array:
            return product(ds[rest : rest + LANES, part : part + LANES], reverse, 0, 0)

        def tile_of_keys(part: int, rest: int) -> jax.Array:
            return product(ds[part : part + LANES, rest : rest + LANES], reverse, 1, 0)

        return spread(BY_QUERIES, q, tile_of_queries, len(k)), spread(BY_KEYS, k, tile_of_keys, len(q))
