"""Positions in attention itself: rotated queries and keys (RoPE), and scores that fall with the distance (ALiBi)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig


def positions_in_sequence(sequence_ids: jax.Array) -> jax.Array:
    """Positions that restart where the sequence id changes: int32 [B, L] -> int32 [B, L]."""
    place = jax.lax.broadcasted_iota(jnp.int32, sequence_ids.shape, 1)
    first = jnp.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - jax.lax.cummax(jnp.where(first, place, 0), axis=1)


def rotated(
    config: ModelConfig, q: jax.Array, k: jax.Array, sequence_ids: jax.Array, packed: bool, window: int
) -> tuple[jax.Array, jax.Array]:
    """Queries and keys [B, L, H, K], each pair of dims turned by its position times its rate, in their dtype.

    Pair t of K / 2 has the rate theta^(-2t / K): `rope_theta`, or in a layer with a window `rope_theta_local` where it
    is not 0. A pair is dims t and t + K / 2, or with `rope_interleaved` 2t and 2t + 1. Positions restart in each packed
    sequence. Angles and products are float32. Source: RoFormer (Su et al. 2021, section 3.2); rates with the roundings
    of transformers, since one in the last place of a rate moves the angle at 2,048 tokens by 1e-4.
    """
    theta = config.rope_theta_local if window and config.rope_theta_local else config.rope_theta
    K = q.shape[-1]
    rates = np.float32(1) / np.float32(theta) ** (np.arange(0, K, 2, dtype=np.float32) / np.float32(K))
    positions = positions_in_sequence(sequence_ids) if packed else jnp.arange(q.shape[1])[None]
    angles = positions[:, :, None, None].astype(jnp.float32) * rates
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return _turned(q, cos, sin, config.rope_interleaved), _turned(k, cos, sin, config.rope_interleaved)


def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array, interleaved: bool) -> jax.Array:
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
    """How much the scores of each head fall from one token to the next (Press et al. 2022, section 3).

    Of 2^a heads the slopes are 2^(-8h / 2^a), h = 1 and on. Of other numbers they are those of the power of two below,
    then every other one, from the first, of twice that power (ofirpress/attention_with_linear_biases, `get_slopes`).
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return tuple(slopes + [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * (heads - power), 2)])


def with_alibi(scores: jax.Array, slopes: tuple[float, ...]) -> jax.Array:
    """Scores float32 [B, H, L, L] less slope times distance; without slopes as they are.

    Distances within a packed sequence are those within its row.
    """
    if not slopes:
        return scores
    place = jnp.arange(scores.shape[-1])
    distance = jnp.abs(place[:, None] - place[None]).astype(jnp.float32)
    return scores - jnp.asarray(slopes, jnp.float32)[:, None, None] * distance
