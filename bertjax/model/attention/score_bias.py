"""A learned bias of attention scores by the distance of the two tokens (T5, MPNet), shared by all layers.

Distances are between positions in the row, as in relative.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.parameters import weight
from bertjax.parallel.sharding import constrain


def distance_bucket(config: ModelConfig, distance: np.ndarray) -> np.ndarray:
    """The bucket of each distance i - j between a token i and a token j: int -> int32.

    Half of the buckets are for tokens j after i. In each half of n buckets, the first n / 2 hold one distance each, and
    the others grow logarithmically up to `score_bias_reach`. Computed in float32, as in transformers' MPNetEncoder.
    """
    half = config.score_bias_buckets // 2
    exact = half // 2
    size = np.abs(distance)
    far = np.log(np.maximum(size, exact).astype(np.float32) / np.float32(exact))
    grown = exact + (far / np.float32(np.log(config.score_bias_reach / exact)) * np.float32(half - exact)).astype(int)
    return (np.where(size < exact, size, np.minimum(grown, half - 1)) + half * (distance < 0)).astype(np.int32)


class ScoreBias(nnx.Module):
    """The table of biases, [buckets, H], and the bias of every pair of tokens of a row: float32 [H, L, L]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        sizes = config.score_bias_buckets, config.num_attention_heads
        self.table = weight(rngs, sizes, ("position", "heads"), config)
        self.config = config

    def __call__(self, length: int) -> jax.Array:
        """Compute the bias for rows of `length` tokens, which may be symbolic in an export."""
        reach = self.config.max_position_embeddings
        buckets = jnp.asarray(distance_bucket(self.config, np.arange(-reach, reach + 1)))
        position = jnp.arange(length)
        index = buckets[jnp.clip(position[:, None] - position[None], -reach, reach) + reach]
        # A product with one-hot rows: its gradient is a product too, not a scatter over pairs of tokens.
        rows = jax.nn.one_hot(index, self.config.score_bias_buckets, dtype=jnp.float32)
        bias = jnp.einsum("LMS,SH->HLM", rows, self.table[...], precision=jax.lax.Precision.HIGHEST)
        return constrain(bias, "row_heads", "row_length", "row_length")
