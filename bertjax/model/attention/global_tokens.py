"""Global tokens beside windows: every token of a sequence sees them, and they see every token of it.

Longformer (arXiv 2004.05150, section 3.1) and its class in transformers: a token that is not global sees its window and
the global tokens in one softmax, in which a global token within the window counts once; a global token sees all of its
sequence, by queries, keys and values of its own. Time and memory grow with length times (window + global tokens).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.model.attention.windows import (
    NOWHERE,
    Keys,
    Scoring,
    attend_blocks,
    block_size,
    heads_first,
    in_blocks,
    joined,
    places_of,
    window_keys,
)


class GlobalTokens(NamedTuple):
    """The global tokens of each row, at most G; a row with fewer has places behind its end."""

    places: jax.Array  # int32 [B, G], ascending; L where there is none
    marked: jax.Array  # bool [B, L]


def find_global_tokens(marked: jax.Array, most: int) -> GlobalTokens:
    """The first `most` marked tokens of each row: bool [B, L].

    Marked tokens behind them stay ordinary. What marks tokens must check that `most` is enough, as nothing on the
    device can refuse a row.
    """
    B, L = marked.shape
    marked &= jnp.cumsum(marked, axis=1) <= most
    number = jnp.where(marked, jnp.cumsum(marked, axis=1) - 1, most)  # of others: behind the last, and dropped
    places = jnp.full((B, most), L, jnp.int32)
    places = places.at[jnp.arange(B)[:, None], number].set(jnp.arange(L, dtype=jnp.int32), mode="drop")
    return GlobalTokens(places, marked)


def keys_per_token(length: int, window: int, global_tokens: int) -> int:
    """The keys that a token of a row sees on average, for counting FLOPs: its window, and twice the global tokens.

    Twice, as each global token is a column that all see and a row that sees all.
    """
    return min(2 * window + 1 + 2 * global_tokens, length)


def take_tokens(x: jax.Array, tokens: GlobalTokens) -> jax.Array:
    """The vectors of global tokens, zero where there is none: [B, L, ...] -> [B, G, ...]."""
    return jax.vmap(lambda row, places: row.at[places].get(mode="fill", fill_value=0))(x, tokens.places)


def global_attention(
    ordinary: tuple[jax.Array, jax.Array, jax.Array],
    of_globals: tuple[jax.Array, jax.Array, jax.Array],
    sequence_ids: jax.Array,
    tokens: GlobalTokens,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    window: int,
) -> jax.Array:
    """Attention of ordinary tokens over windows and global tokens, and of global tokens over all: [B, L, H, K].

    `ordinary` are queries, keys and values [B, L, H, K]; `of_globals` queries [B, G, H, K], of the tokens that
    `take_tokens` picks, and keys and values [B, L, H, K]. `sequence_ids` int32 [B, L]: in packed rows a token is global
    to its own sequence only. The backward pass keeps these inputs alone.
    """
    assert window > 0, "without a window every token sees all"
    length, size = ordinary[0].shape[1], block_size(window)
    scoring = Scoring(length, dropout_keys, dropout_rate)
    places, ids = tokens.places, take_tokens(sequence_ids + 1, tokens) - 1  # `NOWHERE` where there is none

    @jax.checkpoint
    def seen_by_all(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        columns = [heads_first(take_tokens(x, tokens)) for x in (k, v)]
        q, k, v = (in_blocks(heads_first(x), size) for x in (_scaled(q), k, v))
        row_ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        # Within the window a global token is no key: it is one of the columns.
        ordinary_ids = in_blocks(jnp.where(tokens.marked, NOWHERE, sequence_ids)[:, None], size, NOWHERE)
        near = window_keys(k, v, row_ids, ordinary_ids, window)
        far = Keys(*columns, row_ids[..., None] == ids[:, None, None, None, :], places[:, None, None, None, :])
        out = attend_blocks(q, places_of(q), [near, far], scoring)
        return heads_first(joined(out)[:, :, :length])

    @jax.checkpoint
    def see_all(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (heads_first(x) for x in (_scaled(q), k, v))
        same = ids[:, None, None, :, None] == sequence_ids[:, None, None, None, :]
        row = Keys(k, v, same, jnp.arange(length, dtype=jnp.int32))
        return heads_first(attend_blocks(q[:, :, None], places[:, None, None, :, None], [row], scoring)[:, :, 0])

    put = jax.vmap(lambda row, places, new: row.at[places].set(new, mode="drop"))
    return put(seen_by_all(*ordinary), places, see_all(*of_globals))


def _scaled(q: jax.Array) -> jax.Array:
    return q * (q.shape[-1] ** -0.5)
