"""Disentangled attention (DeBERTa): distance vectors, which all layers share, and scores with relative terms.

Distances are between positions in the row, also in packed rows: a token only sees its own sequence, whose tokens are
adjacent, so that i - j in the row equals i - j in the sequence.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.export import is_symbolic_dim

from bertjax.config import ModelConfig
from bertjax.model.attention.kernels import JOINED_HEADS
from bertjax.model.attention.positions import Relative, attention_by_queries
from bertjax.model.layers import LayerNorm
from bertjax.model.parameters import weight


class DistanceProjections(NamedTuple):
    """Queries and keys projected from the distance vectors."""

    queries: jax.Array  # Qr, [H, S, K]
    keys: jax.Array  # Kr, [H, S, K]


def distance_rows(config: ModelConfig) -> int:
    """Rows of the distance table, half of them for each direction."""
    return 2 * (config.relative_buckets or config.relative_max)


def distance_row(config: ModelConfig, distance: np.ndarray) -> np.ndarray:
    """The table row of each distance i - j between a token i and a token j: int -> int32.

    With `relative_buckets` 2m, distances up to m have a row each; a larger distance d has row ceil(ln(d / m) / ln((M -
    1) / m) (m - 1)) + m, M = `relative_max`. Distances beyond the table have its first or last row. Source:
    microsoft/DeBERTa, `make_log_bucket_position`.
    """
    span, middle = distance_rows(config) // 2, config.relative_buckets // 2
    if middle:
        far = np.maximum(np.abs(distance), middle).astype(np.float64)
        steps = np.ceil(np.log(far / middle) / math.log((config.relative_max - 1) / middle) * (middle - 1)) + middle
        distance = np.where(np.abs(distance) <= middle, distance, np.sign(distance) * steps)
    return np.clip(distance + span, 0, 2 * span - 1).astype(np.int32)


def rows_in_reach(config: ModelConfig, length: int) -> int:
    """Rows of the distance table that rows of `length` tokens use, for counting FLOPs; 0 without a table."""
    if config.position_embedding != "relative":
        return 0
    return len(np.unique(distance_row(config, np.arange(1 - length, length))))


class RelativePositions(nnx.Module):
    """The distance vectors, normalised if `relative_norm`: float32 [S, D].

    Without dropout: with a mask per row, as elsewhere, every row would need its own table.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.table = weight(rngs, (distance_rows(config), config.hidden_size), ("position", "embed"), config)
        self.norm = LayerNorm(config, config.hidden_size) if config.relative_norm else None

    def __call__(self) -> jax.Array:
        table = self.table[...]
        return table if self.norm is None else self.norm(table)


def score_scale(head_dim: int) -> float:
    """1 / sqrt(3 K): a score is a sum of three products (section 3.1)."""
    return (3 * head_dim) ** -0.5


def disentangled_attention(
    config: ModelConfig,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    distances: DistanceProjections,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None,
    backend: str = "xla",
) -> jax.Array:
    """Compute softmax((q_i k_j + q_i Kr_d + k_j Qr_d) / sqrt(3 K)) v within sequences: [B, L, H, K] -> [B, L, H, K].

    Queries may come from other vectors than keys and values, at the same positions. No array is [B, H, L, L], except in
    an export for any length, whose symbolic length cannot be cut into blocks.
    """
    if is_symbolic_dim(q.shape[1]):
        assert dropout_keys is None, "exports do not support dropout"
        seen = sequence_ids[:, :, None] == sequence_ids[:, None, :]
        probabilities = disentangled_probabilities(config, q, k, distances, seen)
        return jnp.einsum("BHLM,BMHK->BLHK", probabilities.astype(v.dtype), v)
    scale, rate = score_scale(q.shape[-1]), config.attention_probs_dropout_prob
    if backend in JOINED_HEADS:
        # Imported here because Pallas takes a quarter of a second that other runs do not need to spend.
        from bertjax.model.attention.mosaic import mosaic_attention
        from bertjax.model.attention.mosaic_blocks import Settings
        from bertjax.model.attention.mosaic_distances import ordered_tables

        rate, interpret = 0.0 if dropout_keys is None else rate, backend == "mosaic_interpreted"
        settings = Settings(q.shape[-1], rate, relative=True, interpret=interpret)
        rows = partial(distance_row, config)
        tables = ordered_tables(distances.keys, distances.queries, rows, q.shape[1], scale)
        return mosaic_attention(q, k, v, sequence_ids, dropout_keys, (), settings, tables)
    relative = Relative(distances.keys, distances.queries, partial(distance_row, config))
    return attention_by_queries(q, k, v, sequence_ids, dropout_keys, rate, scale=scale, relative=relative)


def disentangled_probabilities(
    config: ModelConfig, q: jax.Array, k: jax.Array, distances: DistanceProjections, seen: jax.Array
) -> jax.Array:
    """Compute all probabilities, without dropout: float32 [B, H, L, L]; `seen` is bool [B, L, L]."""
    reach = config.relative_max  # larger distances share its row
    rows = jnp.asarray(distance_row(config, np.arange(-reach, reach + 1)))
    positions = jnp.arange(q.shape[1])
    index = rows[jnp.clip(positions[:, None] - positions[None], -reach, reach) + reach][None, None]
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    to_positions = jnp.take_along_axis(product("BLHK,HSK->BHLS", q, distances.keys), index, axis=-1)
    to_content = jnp.take_along_axis(product("BMHK,HSK->BHMS", k, distances.queries), index.swapaxes(2, 3), axis=-1)
    scores = product("BLHK,BMHK->BHLM", q, k) + to_positions + to_content.swapaxes(2, 3)
    scores *= score_scale(q.shape[-1])
    return jax.nn.softmax(jnp.where(seen[:, None], scores, jnp.finfo(jnp.float32).min), axis=-1)
