"""Positions in attention: RoPE, ALiBi and DeBERTa's relative terms.

RoPE rotates queries and keys, ALiBi lowers scores by distance, and relative terms are computed for a block of queries
at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig
from bertjax.model.attention.windows import (
    NOWHERE,
    Keys,
    Scoring,
    attend_blocks,
    block_positions,
    heads_first,
    in_blocks,
    joined,
)
from bertjax.model.products import head_by_head, summed
from bertjax.model.scan_constants import beside

QUERIES = 128  # of a block, if the scores of a row are not computed at once
KEYS = 32  # of a block: each is multiplied with QUERIES + KEYS - 1 distances and needs QUERIES of them

# (queries [B, H, C, K], times the scale; their positions, int32 [C]) -> terms of the scores, float32 [B, H, C, L]
ScoreTerms = Callable[[jax.Array, jax.Array], jax.Array]


def positions_in_sequence(sequence_ids: jax.Array) -> jax.Array:
    """Positions that restart where the sequence id changes: int32 [B, L] -> int32 [B, L]."""
    position = jax.lax.broadcasted_iota(jnp.int32, sequence_ids.shape, 1)
    return position - jax.lax.cummax(jnp.where(_changes(sequence_ids, (1, 0)), position, 0), axis=1)


def sequence_sums(counted: jax.Array, sequence_ids: jax.Array, packed: bool) -> jax.Array:
    """Count the `counted` tokens in the sequence of each token: bool [B, L], int32 [B, L] -> float32 [B, L].

    Without `packed` each row is one sequence, and the result is [B, 1].
    """
    if not packed:
        return jnp.sum(counted, axis=1, keepdims=True, dtype=jnp.float32)
    total = jnp.cumsum(counted, axis=1, dtype=jnp.int32)
    before = jax.lax.cummax(jnp.where(_changes(sequence_ids, (1, 0)), total - counted, 0), axis=1)
    most = counted.shape[1]
    up_to_end = jax.lax.cummin(jnp.where(_changes(sequence_ids, (0, 1)), total, most), axis=1, reverse=True)
    return (up_to_end - before).astype(jnp.float32)


def _changes(sequence_ids: jax.Array, padding: tuple[int, int]) -> jax.Array:
    """Where a sequence begins, with `padding` (1, 0), or ends, with (0, 1): bool [B, L]."""
    return jnp.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], ((0, 0), padding), constant_values=True)


def sinusoids(config: ModelConfig) -> jax.Array:
    """Fixed position vectors (Vaswani et al. 2017, section 3.5), float32 [max positions, E].

    They are scaled to the standard deviation of a learned table's initial values. With an amplitude of 1 they would
    outweigh word vectors of that deviation after the LayerNorm.
    """
    width = config.embedding_size or config.hidden_size
    rates = 10_000.0 ** (-jnp.arange(0, width, 2) / width)
    angles = jnp.arange(config.max_position_embeddings)[:, None] * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(len(angles), -1)[:, :width]
    return waves * (math.sqrt(2) * config.initializer_range)


def rotation_rates(theta: float, width: int) -> np.ndarray:
    """The rate theta^(-2t / width) of each pair of dims in a head of `width` dims: float32 [width / 2]."""
    return np.float32(1) / np.float32(theta) ** (np.arange(0, width, 2, dtype=np.float32) / np.float32(width))


def rotated(
    config: ModelConfig, q: jax.Array, k: jax.Array, sequence_ids: jax.Array, packed: bool, window: int
) -> tuple[jax.Array, jax.Array]:
    """Rotate each pair of dims of queries and keys, [B, L, H, K], by its position times its rate, in their dtype.

    Pair t of K / 2 has the rate theta^(-2t / K): `rope_theta`, or in a layer with a window `rope_theta_local` if it
    is not 0. A pair is dims t and t + K / 2, or 2t and 2t + 1 with `rope_interleaved`. Positions restart in each packed
    sequence. Angles and products are float32. Source: RoFormer (Su et al. 2021, section 3.2); rates with the roundings
    of transformers, since an error in the last digit of a rate moves the angle at 2,048 tokens by 1e-4.
    """
    theta = config.rope_theta_local if window and config.rope_theta_local else config.rope_theta
    rates = rotation_rates(theta, q.shape[-1])
    positions = positions_in_sequence(sequence_ids) if packed else jnp.arange(q.shape[1])[None]
    angles = positions[:, :, None, None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return _rotate_pairs(q, cos, sin, config.rope_interleaved), _rotate_pairs(k, cos, sin, config.rope_interleaved)


def _rotate_pairs(x: jax.Array, cos: jax.Array, sin: jax.Array, interleaved: bool) -> jax.Array:
    wide = x.astype(jnp.float32)
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
    else:
        first, second = jnp.split(wide, 2, axis=-1)
    turned = first * cos - second * sin, second * cos + first * sin
    if interleaved:
        return jnp.stack(turned, axis=-1).reshape(x.shape).astype(x.dtype)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """The slope of each head: how much its scores fall per token of distance (Press et al. 2022, section 3).

    For 2^a heads the slopes are 2^(-8h / 2^a), h = 1, 2, ... For other numbers of heads they are those of the next
    smaller power of two, followed by every second slope of twice that power (ofirpress/attention_with_linear_biases,
    `get_slopes`).
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return tuple(slopes + [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * (heads - power), 2)])


def with_alibi(scores: jax.Array, slopes: tuple[float, ...]) -> jax.Array:
    """Subtract slope times distance from scores, float32 [B, H, L, L].

    Distances within a packed sequence equal those within its row.
    """
    position = jnp.arange(scores.shape[-1])
    distance = jnp.abs(position[:, None] - position[None]).astype(jnp.float32)
    return scores - jnp.asarray(slopes, jnp.float32)[:, None, None] * distance


def attention_by_queries(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    scale: float,
    relative: Relative | None = None,
    window: int = 0,
    causal: bool = False,
    slopes: tuple[float, ...] = (),
) -> jax.Array:
    """Compute softmax(scale (q k + relative terms)) v within sequences: [B, L, H, K] -> [B, L, H, K].

    Dropout equals that of the dense reference. `sequence_ids` is int32 [B, L]; with a `window` a token attends to at
    most that many tokens on either side; `slopes` are ALiBi's, one per head. Scores are computed for one block of
    queries at a time, and again in the backward pass, which keeps q, k, v and the distance vectors: no array is
    [B, H, L, L]. Memory is linear in the length, time quadratic.
    """
    length, size = q.shape[1], min(QUERIES, q.shape[1])
    ids, row = in_blocks(sequence_ids[:, None], size, NOWHERE), jnp.arange(length, dtype=jnp.int32)

    def attention(
        q: jax.Array, k: jax.Array, v: jax.Array, heads: jax.Array | None, *distances: jax.Array
    ) -> jax.Array:
        scoring = Scoring(length, dropout_keys, dropout_rate, slopes, heads)
        terms = Relative(distances[0], distances[1], relative.table_row) if relative else None
        terms_of_block = relative_terms(k * scale, terms) if terms else None
        blocks, k, v = in_blocks(heads_first(q * scale), size), heads_first(k), heads_first(v)

        @jax.checkpoint
        def attend_block(block: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            q, *others = block  # [B, H, C, K], [B, 1, C], [C, 1]
            ids, positions = beside(q, others)
            seen = ids[..., None] == sequence_ids[:, None, None, :]
            if causal:
                seen &= row <= positions
            if window:
                seen &= jnp.abs(row - positions) <= window
            keys = Keys(k, v, seen, row, terms_of_block(q, positions[:, 0]) if terms_of_block else None)
            return attend_blocks(q, positions, [keys], scoring)

        out = jax.lax.map(attend_block, (jnp.moveaxis(blocks, 2, 0), jnp.moveaxis(ids, 2, 0), block_positions(blocks)))
        return heads_first(joined(jnp.moveaxis(out, 0, 2))[:, :, :length])

    return head_by_head(attention, q, k, v, *(relative[:2] if relative else ()))


class Relative(NamedTuple):
    """Projected vectors of a table of S distances, and the table row of each distance."""

    by_queries: jax.Array  # Kr, multiplied with queries: [H, S, K]
    by_keys: jax.Array  # Qr, multiplied with keys: [H, S, K]
    table_row: Callable[[np.ndarray], np.ndarray]  # distances i - j -> rows: int32 -> int32


def relative_terms(k: jax.Array, relative: Relative) -> ScoreTerms:
    """Content-to-position and position-to-content terms of the scores (DeBERTa, arXiv 2006.03654, section 3.1).

    Token i adds q_i Kr_d + k_j Qr_d to its score of j, where d = `table_row`(i - j). `k` is [B, L, H, K], scaled like
    q.

    Each token is multiplied with the vectors of a range of distances, and its row of products is shifted by its
    position, as a slice of a reshaped array. A gather of single scores, and its scatter in the backward pass, would
    take most of the time on any device. Heads come first here, [H, N, B, C, K]: all rows share the vectors, so the
    tokens of a block in all rows are one factor of one product.
    """
    length, size = k.shape[1], min(QUERIES, k.shape[1])
    key_block = min(KEYS, length)
    keys = jnp.moveaxis(in_blocks(heads_first(k), key_block), 0, 2)
    blocks = keys.shape[1]
    whole = max(length + -length % size, blocks * key_block) + key_block
    # Vectors of the distances from 1 - whole up, and in the order of keys: from whole - 1 down.
    rows = relative.table_row(np.arange(1 - whole, whole, dtype=np.int32))
    ascending = jnp.take(relative.by_keys, rows, axis=1)
    descending = jnp.take(relative.by_queries, rows[::-1], axis=1)

    def terms_of_block(q: jax.Array, positions: jax.Array) -> jax.Array:
        first = positions[0]
        near = jax.lax.dynamic_slice_in_dim(descending, whole - size - first, length + size - 1, axis=1)
        to_positions = _shift_rows(summed("HBCK,HUK->HBCU", q.swapaxes(0, 1), near), length)
        far = _overlapping_parts(ascending, first + whole - blocks * key_block, blocks, key_block, size + key_block - 1)
        to_content = _shift_rows(summed("HNBCK,HNUK->HNBCU", keys, far[:, ::-1]), size)
        to_content = to_content.transpose(0, 2, 4, 1, 3).reshape(*to_positions.shape[:3], -1)[..., :length]
        return (to_positions + to_content).swapaxes(0, 1)

    return terms_of_block


def _overlapping_parts(x: jax.Array, start: jax.Array, count: int, step: int, width: int) -> jax.Array:
    """Cut `count` overlapping parts of `width` rows, at intervals of `step` rows: [H, S, K] -> [H, count, width, K].

    Parts are concatenated from pieces, so that the gradient is a sum of a few arrays for any number of parts.
    """
    pieces = -(-width // step)
    rows = jax.lax.dynamic_slice_in_dim(x, start, (count + pieces - 1) * step, axis=1)
    rows = rows.reshape(x.shape[0], -1, step, x.shape[-1])
    return jnp.concatenate([rows[:, piece : piece + count] for piece in range(pieces)], axis=2)[:, :, :width]


def _slice_rows(x: jax.Array, width: int) -> jax.Array:
    """Slice row c from column C - 1 - c on: [..., C, width + C - 1] -> [..., C, width]; C is at least 2."""
    rows, columns = x.shape[-2:]
    assert columns == width + rows - 1, "there must be a column for each distance"
    flat = x.reshape(*x.shape[:-2], rows * columns)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return flat.reshape(*x.shape[:-2], rows, columns - 1)[..., :width]


_shift_rows = jax.custom_vjp(_slice_rows, nondiff_argnums=(1,))


def _shift_rows_backward(width: int, residuals: None, g: jax.Array) -> tuple[jax.Array]:
    """JAX's derivative, but with concatenated zeros: padding g is several times slower on a CPU."""
    outer, rows = g.shape[:-2], g.shape[-2]
    columns = width + rows - 1
    wide = jnp.concatenate([g, jnp.zeros((*outer, rows, rows - 2), g.dtype)], axis=-1)
    flat = wide.reshape(*outer, rows * (columns - 1))
    before, after = jnp.zeros((*outer, rows - 1), g.dtype), jnp.zeros((*outer, 1), g.dtype)
    return (jnp.concatenate([before, flat, after], axis=-1).reshape(*outer, rows, columns),)


_shift_rows.defvjp(lambda x, width: (_shift_rows(x, width), None), _shift_rows_backward)
