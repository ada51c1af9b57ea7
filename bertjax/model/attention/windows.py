"""Softmax attention of queries in blocks, each over a few of the row's keys; windows and global tokens, computed so.

Here B rows of L tokens have N blocks of C queries; M keys are seen by a block, and blocks are [B, H, N, C, K]. The
scores are [B, H, N, C, M]: no array has L dims twice. Time and memory of a window grow with length times window, not
with length squared. Exact: a block of at least a window's queries sees keys of its own and of both neighbouring blocks
only (Longformer, section 3.1, computes overlapping blocks likewise), under the mask of sequences and distance.
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
    """What the probabilities depend on besides q, k and the mask."""

    length: int  # L
    dropout_keys: jax.Array | None = None  # uint32 [B]
    dropout_rate: float = 0.0
    slopes: tuple[float, ...] = ()  # of ALiBi, one a head: a score falls by so much from one token to the next
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
    """The blocks of a row in one dim: [B, H, N, C, K] -> [B, H, N C, K]."""
    return x.reshape(*x.shape[:2], -1, x.shape[-1])


def block_positions(blocks: jax.Array) -> jax.Array:
    """The position in the row of each token of all blocks [B, H, N, C, K]: int32 [N, C, 1]."""
    return jnp.arange(blocks.shape[2] * blocks.shape[3], dtype=jnp.int32).reshape(*blocks.shape[2:4], 1)


def attend_blocks(q: jax.Array, positions: jax.Array, parts: Sequence[Keys], scoring: Scoring) -> jax.Array:
    """One softmax over the keys of all parts, times their values: [B, H, N, C, K] -> the same.

    Of a single block N is left out, here and in its keys: a CPU takes a tenth less for four dims than for five.
    `positions` of the queries, int32, broadcast to [B, H, N, C, 1]. A key in two parts, or twice in one, counts twice.
    Every query must see a key. Scores, softmax and the sum over parts are float32 whatever the dtype of q. The dropout
    of (head h, query at i, key at j) depends on h L L + i L + j alone (modulo 2^32), so it is that of the dense
    reference.
    """
    scores = jnp.concatenate([_part_scores(q, positions, part, scoring) for part in parts], axis=-1)
    probs = cast(jax.Array, rounded_softmax(scores, q.dtype))
    probs = jnp.split(probs, [sum(part.k.shape[-2] for part in parts[: n + 1]) for n in range(len(parts) - 1)], axis=-1)
    dropped = [_dropped(probs_part, positions, part, scoring) for probs_part, part in zip(probs, parts, strict=True)]
    if len(parts) == 1:
        return _mixed(dropped[0], parts[0].v, q.dtype)
    mixed = [_mixed(weights, part.v, jnp.float32) for weights, part in zip(dropped, parts, strict=True)]
    return sum(mixed[1:], mixed[0]).astype(q.dtype)


def _part_scores(q: jax.Array, positions: jax.Array, part: Keys, scoring: Scoring) -> jax.Array:
    if part.k.ndim == 4:
        scores = summed("BHLK,BHMK->BHLM", joined(q), part.k).reshape(*q.shape[:-1], -1)
    else:
        scores = summed("BHNCK,BHNMK->BHNCM", q, part.k)
    if scoring.slopes:
        slopes = jnp.asarray(scoring.slopes, jnp.float32)[_heads(scores, scoring)]
        scores -= _one_a_head(slopes, scores) * jnp.abs(positions - part.positions)
    if part.added is not None:
        scores += part.added
    return jnp.where(part.seen, scores, jnp.finfo(jnp.float32).min)


def _mixed(probs: jax.Array, v: jax.Array, dtype: jnp.dtype) -> jax.Array:
    if v.ndim == 4:
        return summed("BHLM,BHMK->BHLK", joined(probs), v).astype(dtype).reshape(*probs.shape[:-1], -1)
    return summed("BHNCM,BHNMK->BHNCK", probs, v).astype(dtype)


def _dropped(probs: jax.Array, positions: jax.Array, part: Keys, scoring: Scoring) -> jax.Array:
    if scoring.dropout_keys is None or scoring.dropout_rate == 0.0:
        return probs
    L, head = scoring.length, _one_a_head(_heads(probs, scoring), probs)
    i, j = positions.astype(jnp.uint32), part.positions.astype(jnp.uint32)
    numbers = (head * jnp.uint32(L) + i) * jnp.uint32(L) + j
    return dropout_at(probs, numbers, scoring.dropout_keys, ATTENTION_PROBS, scoring.dropout_rate)


def _heads(scores: jax.Array, scoring: Scoring) -> jax.Array:
    """The number in the layer of each head of scores [B, H, ...]: uint32 [H]."""
    return jnp.arange(scores.shape[1], dtype=jnp.uint32) if scoring.heads is None else scoring.heads


def _one_a_head(values: jax.Array, scores: jax.Array) -> jax.Array:
    """[H], so that it broadcasts to scores [B, H, ...]."""
    return values.reshape(-1, *[1] * (scores.ndim - 2))


def block_size(window: int) -> int:
    """The number of queries in a block."""
    return max(window, LEAST_BLOCK)


def pays(length: int, window: int) -> bool:
    """Whether blocks compute fewer scores than the full square does, for rows of `length` tokens.

    Not where the length is a symbol (of an export for any length): the number of blocks has to be known.
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
    """softmax(q k / sqrt(K)) v over tokens at most `window` away within a sequence: [B, L, H, K] -> [B, L, H, K].

    The function is that of `xla_attention` under `visible(sequence_ids, causal, window)`, with the same dropout.
    `window` is at least 1, on either side; `sequence_ids` is int32 [B, L]; `slopes` are ALiBi's, one a head. The
    backward pass keeps q, k and v and computes the scores again.
    """
    assert window > 0, "without a window a block sees the whole row"
    length, size = q.shape[1], block_size(window)

    @jax.checkpoint
    def attended(q: jax.Array, k: jax.Array, v: jax.Array, heads: jax.Array | None) -> jax.Array:
        q, k, v = (in_blocks(heads_first(x), size) for x in (_scaled(q), k, v))
        ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        keys = window_keys(k, v, ids, ids, window, causal)
        out = attend_blocks(q, block_positions(q), [keys], Scoring(length, dropout_keys, dropout_rate, slopes, heads))
        return heads_first(joined(out)[:, :, :length])

    return head_by_head(attended, q, k, v)


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
    """Each block between the last `left` of the one before and the first `right` of the one after.

    [B, H, N, C, ...] -> [B, H, N, left + C + right, ...]
    """
    around = jnp.pad(blocks, [(int(dim == 2),) * 2 for dim in range(blocks.ndim)], constant_values=fill)
    size = blocks.shape[3]
    return jnp.concatenate([around[:, :, :-2, size - left :], blocks, around[:, :, 2:, :right]], axis=3)


class GlobalTokens(NamedTuple):
    """The global tokens of each row, at most G; a row with fewer has positions after its end."""

    positions: jax.Array  # int32 [B, G], ascending; L where there is none
    marked: jax.Array  # bool [B, L]


def keys_with_globals(length: int, window: int, global_tokens: int) -> int:
    """The keys that a token of a row sees on average, for counting FLOPs: its window, and twice the global tokens.

    Twice, as each global token is a column that all see and a row that sees all.
    """
    return min(2 * window + 1 + 2 * global_tokens, length)


def take_tokens(x: jax.Array, tokens: GlobalTokens) -> jax.Array:
    """The vectors of global tokens, zero where there is none: [B, L, ...] -> [B, G, ...]."""
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
    """Attention of ordinary tokens over windows and global tokens, and of global tokens over all: [B, L, H, K].

    Longformer (arXiv 2004.05150, section 3.1) and its class in transformers: a token that is not global sees its window
    and the global tokens in one softmax, in which a global token within the window counts once; a global token sees all
    of its sequence, by queries, keys and values of its own. Time and memory grow with length times (window + global
    tokens).

    `ordinary` are queries, keys and values [B, L, H, K]; `global_tokens` queries [B, G, H, K], of the tokens that
    `take_tokens` picks, and keys and values [B, L, H, K]. `sequence_ids` int32 [B, L]: in packed rows a token is global
    to its own sequence only. The backward pass keeps these inputs alone.
    """
    assert window > 0, "without a window every token sees all"
    length, size = ordinary[0].shape[1], block_size(window)
    scoring = Scoring(length, dropout_keys, dropout_rate)
    positions, ids = tokens.positions, take_tokens(sequence_ids + 1, tokens) - 1  # `NOWHERE` where there is none

    @jax.checkpoint
    def seen_by_all(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        global_k, global_v = (heads_first(take_tokens(x, tokens)) for x in (k, v))
        q, k, v = (in_blocks(heads_first(x), size) for x in (_scaled(q), k, v))
        row_ids = in_blocks(sequence_ids[:, None], size, NOWHERE)
        # Within the window a global token is no key: it is one of the columns.
        ordinary_ids = in_blocks(jnp.where(tokens.marked, NOWHERE, sequence_ids)[:, None], size, NOWHERE)
        near = window_keys(k, v, row_ids, ordinary_ids, window)
        seen = row_ids[..., None] == ids[:, None, None, None, :]
        far = Keys(global_k, global_v, seen, positions[:, None, None, None, :])
        out = attend_blocks(q, block_positions(q), [near, far], scoring)
        return heads_first(joined(out)[:, :, :length])

    @jax.checkpoint
    def see_all(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (heads_first(x) for x in (_scaled(q), k, v))
        same = ids[:, None, :, None] == sequence_ids[:, None, None, :]
        row = Keys(k, v, same, jnp.arange(length, dtype=jnp.int32))
        return heads_first(attend_blocks(q, positions[:, None, :, None], [row], scoring))

    put = jax.vmap(lambda row, positions, new: row.at[positions].set(new, mode="drop"))
    return put(seen_by_all(*ordinary), positions, see_all(*global_tokens))


def _scaled(q: jax.Array) -> jax.Array:
    return q * (q.shape[-1] ** -0.5)
