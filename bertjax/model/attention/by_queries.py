"""Attention over whole rows, a block of queries at a time: memory grows with the length, time with its square.

It is for scores that no fused kernel computes: what is added to q k is made for one block of queries, in the forward
pass and again in the backward pass, so that no array is [B, H, L, L].
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.model.attention.windows import (
    NOWHERE,
    Keys,
    Scoring,
    attend_blocks,
    heads_first,
    in_blocks,
    joined,
    places_of,
)

BLOCK = 128  # queries

# (queries [B, H, C, K], times the scale; their places, int32 [C]) -> what is added to the scores, float32 [B, H, C, L]
Added = Callable[[jax.Array, jax.Array], jax.Array]


def attention_by_queries(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    scale: float,
    added: Added,
) -> jax.Array:
    """softmax(scale q k + added) v within sequences: [B, L, H, K] -> [B, L, H, K], with the dense reference's dropout.

    `sequence_ids` is int32 [B, L]. The backward pass keeps q, k, v and what `added` uses.
    """
    length = q.shape[1]
    scoring = Scoring(length, dropout_keys, dropout_rate)
    blocks, ids = in_blocks(heads_first(q * scale), BLOCK), in_blocks(sequence_ids[:, None], BLOCK, NOWHERE)
    k, v, row = heads_first(k), heads_first(v), jnp.arange(length, dtype=jnp.int32)

    @jax.checkpoint
    def of_block(block: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        q, ids, places = block  # [B, H, C, K], [B, 1, C], [C, 1]
        same = ids[:, :, None, :, None] == sequence_ids[:, None, None, None, :]
        keys = Keys(k, v, same, row, added(q, places[:, 0])[:, :, None])
        return attend_blocks(q[:, :, None], places, [keys], scoring)[:, :, 0]

    out = jax.lax.map(of_block, (jnp.moveaxis(blocks, 2, 0), jnp.moveaxis(ids, 2, 0), places_of(blocks)))
    return heads_first(joined(jnp.moveaxis(out, 0, 2))[:, :, :length])


def relative_terms(by_queries: jax.Array, of_keys: jax.Array, row_of: Callable[[jax.Array], jax.Array]) -> Added:
    """Content-to-position and position-to-content scores (DeBERTa, arXiv 2006.03654, section 3.1).

    Token i adds q_i Kr_d + k_j Qr_d to its score of j, where d = `row_of`(i - j), int32 -> int32, is a row of the
    relative table of S rows. `by_queries` is Kr [H, S, K]; `of_keys` is k Qr, float32 [B, H, L, S], scaled like q.
    """
    length = of_keys.shape[2]

    def added(q: jax.Array, places: jax.Array) -> jax.Array:
        rows = row_of(places[:, None] - jnp.arange(length, dtype=jnp.int32))
        of_queries = jnp.einsum("BHCK,HSK->BHCS", q, by_queries, preferred_element_type=jnp.float32)
        to_positions = jnp.take_along_axis(of_queries, rows[None, None], axis=-1)
        to_content = jnp.take_along_axis(of_keys, rows.T[None, None], axis=-1)
        return to_positions + to_content.swapaxes(2, 3)

    return added
