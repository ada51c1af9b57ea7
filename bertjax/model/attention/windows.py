"""Attention in windows by blocks of queries: time and memory grow with length times window, not with length squared.

Exact: a block of at least a window's queries sees keys of its own and of both neighbouring blocks only (Longformer,
section 3.1, computes overlapping blocks likewise), under the mask of sequences and distance.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bertjax.model.attention.blocks import (
    NOWHERE,
    Keys,
    Scoring,
    attend_blocks,
    heads_first,
    in_blocks,
    joined,
    places_of,
)

LEAST_BLOCK = 64  # queries of a block: with fewer, products are too small to be fast


def block_size(window: int) -> int:
    """Queries of a block."""
    return max(window, LEAST_BLOCK)


def pays(length: int, window: int) -> bool:
    """Whether blocks compute fewer scores than the full square does, for rows of `length` tokens."""
    return bool(window) and length > block_size(window) + 2 * window


def window_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    window: int,
    causal: bool = False,
    slopes: tuple[float, ...] = (),
) -> jax.Array:
    """softmax(q k / sqrt(K)) v over tokens at most `window` away within a sequence: [B, L, H, K] -> [B, L, H, K].

    The function is that of `xla_attention` under `visible(sequence_ids, causal, window)`, with the same dropout.
    `window` is at least 1, on either side; `sequence_ids` is int32 [B, L]; `slopes` are ALiBi's, one a head. The
    backward pass keeps q, k and v and computes the scores again.
    """
    assert window > 0, "without a window a block sees the whole row"
    length, size = q.shape[1], block_size(window)

    @jax.checkpoint
    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (in_blocks(heads_first(x), size) for x in (q * (q.shape[-1] ** -0.5), k, v))
        ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        keys = window_keys(k, v, ids, ids, window, causal)
        out = attend_blocks(q, places_of(q), [keys], Scoring(length, dropout_keys, dropout_rate, slopes))
        return heads_first(joined(out)[:, :, :length])

    return attended(q, k, v)


def window_keys(
    k: jax.Array, v: jax.Array, ids: jax.Array, key_ids: jax.Array, window: int, causal: bool = False
) -> Keys:
    """What each block sees: its own keys, and as many as the window of the block before and of the one behind.

    k, v [B, H, N, C, K] with C at least the window; `ids` of the queries' sequences and `key_ids` of the keys', int32
    [B, 1, N, C], are `NOWHERE` behind the row's end.
    """
    size, right = k.shape[3], 0 if causal else window
    of_query = jnp.arange(size)[:, None]
    of_key = jnp.arange(-window, size + right)[None]
    near = (of_query - of_key <= window) & (of_key - of_query <= right)
    context_ids = _with_neighbours(key_ids, window, right, NOWHERE)
    same = ids[..., :, None] == context_ids[..., None, :]
    first = size * jnp.arange(k.shape[2])[:, None, None]
    return Keys(_with_neighbours(k, window, right), _with_neighbours(v, window, right), near & same, first + of_key)


def _with_neighbours(blocks: jax.Array, left: int, right: int, fill: int = 0) -> jax.Array:
    """Each block between the last `left` of the one before and the first `right` of the one behind.

    [B, H, N, C, ...] -> [B, H, N, left + C + right, ...]
    """
    around = jnp.pad(blocks, [(int(dim == 2),) * 2 for dim in range(blocks.ndim)], constant_values=fill)
    size = blocks.shape[3]
    return jnp.concatenate([around[:, :, :-2, size - left :], blocks, around[:, :, 2:, :right]], axis=3)
