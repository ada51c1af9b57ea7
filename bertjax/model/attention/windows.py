"""Attention of blocks of queries over a few keys of their row, for sliding windows and global tokens.

B rows of L tokens have N blocks of C queries, [B, H, N, C, K], each of which sees M keys. The scores are
[B, H, N, C, M]: no array is [L, L]. Time and memory of a window grow with length times window, not with length squared.
The result is exact: a block of at least as many queries as the window only sees keys of its own and of both
neighbouring blocks (Longformer, section 3.1, has overlapping blocks too), under the mask of sequences and distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from bertjax.model.dropout import ATTENTION_PROBS, dropout_at
from bertjax.model.products import head_by_head, rounded_softmax, summed

NOWHERE = -1  # sequence id outside the row: it equals no token's id
LEAST_BLOCK = 64  # queries of a block: with fewer, products are too small to be fast


class Keys(NamedTuple):
    """Keys that the queries of a block see."""

    k: jax.Array  # [B, H, N, M, K], or [B, H, M, K] where every block sees the same
    v: jax.Array  # as k
    seen: jax.Array  # bool, broadcast to [B, H, N, C, M]
    positions: jax.Array  # their positions in the row: int32, broadcast to [B, H, N, 1, M]
    added: jax.Array | None = None  # to the scores: float32, broadcast to [B, H, N, C, M]


class Scoring(NamedTuple):
    """Parameters of the probabilities besides q, k and the mask."""

    length: int  # L
    dropout_keys: jax.Array | None = None  # uint32 [B]
    dropout_rate: float = 0.0
    slopes: tuple[float, ...] = ()  # of ALiBi, one per head: how much a score falls per token of distance
    heads: jax.Array | None = None  # uint32 [H]: which heads of the layer these are; None: all


def in_blocks(x: jax.Array, size: int, fill: int = 0) -> jax.Array:
    """Split dim 2 into blocks after padding it to a multiple: [B, H, L, ...] -> [B, H, N, size, ...]."""
    missing = -x.shape[2] % size
    x = jnp.pad(x, [(0, missing if dim == 2 else 0) for dim in range(x.ndim)], constant_values=fill)
    return x.reshape(*x.shape[:2], -1, size, *x.shape[3:])


def heads_first(x: jax.Array) -> jax.Array:
    """[B, L, H, K] -> [B, H, L, K] and back."""
    return x.swapaxes(1, 2)


def joined(x: jax.Array) -> jax.Array:
    """Join the blocks of a row: [B, H, N, C, K] -> [B, H, N C, K]."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def block_positions(blocks: jax.Array) -> jax.Array:
    """The position in the row of each token of all blocks [B, H, N, C, K]: int32 [N, C, 1]."""
    return jnp.arange(blocks.shape[2] * blocks.shape[3], dtype=jnp.int32).reshape(*blocks.shape[2:4], 1)


def attend_blocks(q: jax.Array, positions: jax.Array, parts: Sequence[Keys], scoring: Scoring) -> jax.Array:
    """Compute one softmax over the keys of all parts, times their values: [B, H, N, C, K] -> the same.

    A single block has no dim N, here and in its keys: on a CPU four dims take a tenth less time than five. `positions`
    of the queries, int32, broadcast to [B, H, N, C, 1]. A key in two parts, or twice in one, counts twice. Every query
    must see a key. Scores, softmax and the sum over parts are float32 whatever the dtype of q. The dropout of (head h,
    query at i, key at j) depends on h L L + i L + j alone (modulo 2^32), so it equals that of the dense reference.
    """
    scores = jnp.concatenate([_part_scores(q, positions, part, scoring) for part in parts], axis=-1)
    probs = cast(jax.Array, rounded_softmax(scores, q.dtype))
    probs = jnp.split(probs, [sum(part.k.shape[-2] for part in parts[: n + 1]) for n in range(len(parts) - 1)], axis=-1)
    dropped = [_drop(probs_part, positions, part, scoring) for probs_part, part in zip(probs, parts, strict=True)]
    if len(parts) == 1:
        return _weighted_values(dropped[0], parts[0].v, q.dtype)
    mixed = [_weighted_values(weights, part.v, jnp.float32) for weights, part in zip(dropped, parts, strict=True)]
    return sum(mixed[1:], mixed[0]).astype(q.dtype)


def _part_scores(q: jax.Array, positions: jax.Array, part: Keys, scoring: Scoring) -> jax.Array:
    if part.k.ndim == 4:
        scores = summed("BHLK,BHMK->BHLM", joined(q), part.k).reshape(*q.shape[:-1], -1)
    else:
        scores = summed("BHNCK,BHNMK->BHNCM", q, part.k)
    if scoring.slopes:
        slopes = jnp.asarray(scoring.slopes, jnp.float32)[_heads(scores, scoring)]
        scores -= _per_head(slopes, scores) * jnp.abs(positions - part.positions)
    if part.added is not None:
        scores += part.added
    return jnp.where(part.seen, scores, jnp.finfo(jnp.float32).min)


def _weighted_values(probs: jax.Array, v: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if v.ndim == 4:
        return summed("BHLM,BHMK->BHLK", joined(probs), v).astype(dtype).reshape(*probs.shape[:-1], -1)
    return summed("BHNCM,BHNMK->BHNCK", probs, v).astype(dtype)


def _drop(probs: jax.Array, positions: jax.Array, part: Keys, scoring: Scoring) -> jax.Array:
    if scoring.dropout_keys is None or scoring.dropout_rate == 0.0:
        return probs
    L, head = scoring.length, _per_head(_heads(probs, scoring), probs)
    i, j = positions.astype(jnp.uint32), part.positions.astype(jnp.uint32)
    numbers = (head * jnp.uint32(L) + i) * jnp.uint32(L) + j
    return dropout_at(probs, numbers, scoring.dropout_keys, ATTENTION_PROBS, scoring.dropout_rate)


def _heads(scores: jax.Array, scoring: Scoring) -> jax.Array:
    """The number in the layer of each head in scores [B, H, ...]: uint32 [H]."""
    return jnp.arange(scores.shape[1], dtype=jnp.uint32) if scoring.heads is None else scoring.heads


def _per_head(values: jax.Array, scores: jax.Array) -> jax.Array:
    """Reshape values [H] so that they broadcast to scores [B, H, ...]."""
    return values.reshape(-1, *[1] * (scores.ndim - 2))


def block_size(window: int) -> int:
    """The number of queries in a block."""
    return max(window, LEAST_BLOCK)


def pays(length: int, window: int) -> bool:
    """Whether blocks compute fewer scores than the full square does, for rows of `length` tokens.

    False if the length is symbolic (in an export for any length): the number of blocks has to be known.
    """
    return not is_symbolic_dim(length) and length > block_size(window) + 2 * window


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
    """Compute softmax(q k / sqrt(K)) v over tokens at most `window` away within a sequence: [B, L, H, K] -> the same.

    Equals `xla_attention` under `visible(sequence_ids, causal, window)`, with the same dropout. `window` is at least 1,
    on either side; `sequence_ids` is int32 [B, L]; `slopes` are ALiBi's, one per head. The backward pass keeps q, k and
    v, and recomputes the scores.
    """
    assert window > 0, "without a window a block sees the whole row"
    length, size = q.shape[1], block_size(window)

    @jax.checkpoint
    def attention(q: jax.Array, k: jax.Array, v: jax.Array, heads: jax.Array | None) -> jax.Array:
        q, k, v = (in_blocks(heads_first(x), size) for x in (_scale(q), k, v))
        ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        keys = window_keys(k, v, ids, ids, window, causal)
        out = attend_blocks(q, block_positions(q), [keys], Scoring(length, dropout_keys, dropout_rate, slopes, heads))
        return heads_first(joined(out)[:, :, :length])

    return head_by_head(attention, q, k, v)


def window_keys(
    k: jax.Array, v: jax.Array, ids: jax.Array, key_ids: jax.Array, window: int, causal: bool = False
) -> Keys:
    """The keys that each block sees: its own, and the nearest `window` keys of both neighbouring blocks.

    k, v [B, H, N, C, K] with C at least the window; `ids` of the queries' sequences and `key_ids` of the keys', int32
    [B, 1, N, C], are `NOWHERE` after the row's end.
    """
    size, right = k.shape[3], 0 if causal else window
    query = jnp.arange(size)[:, None]
    key = jnp.arange(-window, size + right)[None]
    near = (query - key <= window) & (key - query <= right)
    context_ids = _with_neighbours(key_ids, window, right, NOWHERE)
    same = ids[..., :, None] == context_ids[..., None, :]
    first = size * jnp.arange(k.shape[2])[:, None, None]
    return Keys(_with_neighbours(k, window, right), _with_neighbours(v, window, right), near & same, first + key)


def _with_neighbours(blocks: jax.Array, left: int, right: int, fill: int = 0) -> jax.Array:
    """Put each block between the last `left` tokens of the one before and the first `right` of the one after.

    [B, H, N, C, ...] -> [B, H, N, left + C + right, ...]
    """
    around = jnp.pad(blocks, [(int(dim == 2),) * 2 for dim in range(blocks.ndim)], constant_values=fill)
    size = blocks.shape[3]
    return jnp.concatenate([around[:, :, :-2, size - left :], blocks, around[:, :, 2:, :right]], axis=3)


class GlobalTokens(NamedTuple):
    """The global tokens of each row, at most G; a row with fewer has positions after its end."""

    positions: jax.Array  # int32 [B, G], ascending; L for unused slots
    marked: jax.Array  # bool [B, L]


def keys_with_globals(length: int, window: int, global_tokens: int) -> int:
    """The average number of keys that a token sees, for counting FLOPs: its window, and twice the global tokens.

    Twice, because each global token is a key for all tokens and a query over all tokens.
    """
    return min(2 * window + 1 + 2 * global_tokens, length)


def take_tokens(x: jax.Array, tokens: GlobalTokens) -> jax.Array:
    """Take the vectors of the global tokens, zeros for unused slots: [B, L, ...] -> [B, G, ...]."""
    return jax.vmap(lambda row, positions: row.at[positions].get(mode="fill", fill_value=0))(x, tokens.positions)


def global_attention(
    ordinary: tuple[jax.Array, jax.Array, jax.Array],
    global_tokens: tuple[jax.Array, jax.Array, jax.Array],
    sequence_ids: jax.Array,
    tokens: GlobalTokens,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    window: int,
) -> jax.Array:
    """Attend from ordinary tokens to windows and global tokens, and from global tokens to all: [B, L, H, K].

    Longformer (arXiv 2004.05150, section 3.1) and its class in transformers: a token that is not global sees its window
    and the global tokens in one softmax, in which a global token within the window counts once; a global token sees all
    of its sequence, with separate queries, keys and values. Time and memory grow with length times (window + global
    tokens).

    `ordinary` are queries, keys and values [B, L, H, K]; `global_tokens` queries [B, G, H, K], of the tokens that
    `take_tokens` picks, and keys and values [B, L, H, K]. `sequence_ids` int32 [B, L]: in packed rows a token is global
    to its own sequence only. The backward pass keeps only these inputs.
    """
    assert window > 0, "without a window every token sees all"
    length, size = ordinary[0].shape[1], block_size(window)
    scoring = Scoring(length, dropout_keys, dropout_rate)
    positions, ids = tokens.positions, take_tokens(sequence_ids + 1, tokens) - 1  # `NOWHERE` for unused slots

    @jax.checkpoint
    def attend_from_ordinary(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        global_k, global_v = (heads_first(take_tokens(x, tokens)) for x in (k, v))
        q, k, v = (in_blocks(heads_first(x), size) for x in (_scale(q), k, v))
        row_ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        # Global tokens are masked within the window: their keys are in `far`.
        ordinary_ids = in_blocks(jnp.where(tokens.marked, NOWHERE, sequence_ids)[:, None], size, NOWHERE)
        near = window_keys(k, v, row_ids, ordinary_ids, window)
        seen = row_ids[..., None] == ids[:, None, None, None, :]
        far = Keys(global_k, global_v, seen, positions[:, None, None, None, :])
        out = attend_blocks(q, block_positions(q), [near, far], scoring)
        return heads_first(joined(out)[:, :, :length])

    @jax.checkpoint
    def attend_from_global(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (heads_first(x) for x in (_scale(q), k, v))
        same = ids[:, None, :, None] == sequence_ids[:, None, None, :]
        row = Keys(k, v, same, jnp.arange(length, dtype=jnp.int32))
        return heads_first(attend_blocks(q, positions[:, None, :, None], [row], scoring))

    insert = jax.vmap(lambda row, positions, new: row.at[positions].set(new, mode="drop"))
    return insert(attend_from_ordinary(*ordinary), positions, attend_from_global(*global_tokens))


def _scale(q: jax.Array) -> jax.Array:
    return q * (q.shape[-1] ** -0.5)
