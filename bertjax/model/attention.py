"""Multi-head self-attention within sequences of equal id."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.dropout import ATTENTION_PROBS, dropout
from bertjax.model.parameters import weight, zeros
from bertjax.parallel.sharding import constrain


class Projection(nnx.Module):
    """The weights of one of query, key, value."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        shape = (config.hidden_size, heads, head_dim)
        self.kernel = weight(rngs, shape, ("embed", "heads", "head_dim"), config)
        self.bias = zeros((heads, head_dim), ("heads", "head_dim"))


def project(x_BLD: jax.Array, *projections: Projection) -> tuple[jax.Array, ...]:
    """[B, L, D] -> [B, L, H, K] for each projection, all in one product: a wide matmul runs nearer to the peak."""
    kernel_DTHK = jnp.stack([p.kernel[...] for p in projections], axis=1).astype(x_BLD.dtype)
    bias_THK = jnp.stack([p.bias[...] for p in projections]).astype(x_BLD.dtype)
    y_BLTHK = jnp.tensordot(x_BLD, kernel_DTHK, axes=1) + bias_THK
    parts = [y_BLTHK[:, :, i] for i in range(len(projections))]
    return tuple(constrain(part, "act_batch", "act_length", "act_heads", "head_dim") for part in parts)


class OutputProjection(nnx.Module):
    """The heads joined and mixed: [B, L, H, K] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.kernel = weight(rngs, (heads, head_dim, config.hidden_size), ("heads", "head_dim", "embed"), config)
        self.bias = zeros((config.hidden_size,), ("hidden",))

    def __call__(self, x_BLHK: jax.Array) -> jax.Array:
        H, K, D = self.kernel.shape
        y = x_BLHK.reshape(*x_BLHK.shape[:-2], H * K) @ self.kernel[...].reshape(H * K, D).astype(x_BLHK.dtype)
        return constrain(y + self.bias[...].astype(y.dtype), "act_batch", "act_length", "act_embed")


class SelfAttention(nnx.Module):
    """Scaled dot-product attention (paper, section 3; modeling.py `attention_layer`), [B, L, D] -> [B, L, D].

    A token sees the tokens with its own sequence id: within its sequence when rows are packed, and never padding. In a
    causal model it sees those of them up to itself.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.query = Projection(config, rngs=rngs)
        self.key = Projection(config, rngs=rngs)
        self.value = Projection(config, rngs=rngs)
        self.output = OutputProjection(config, rngs=rngs)
        self.dropout_rate = config.attention_probs_dropout_prob
        self.causal = config.causal

    def __call__(self, x_BLD: jax.Array, sequence_ids: jax.Array, dropout_keys: jax.Array | None) -> jax.Array:
        q, k, v = project(x_BLD, self.query, self.key, self.value)
        seen = visible(sequence_ids, self.causal)
        return self.output(attend(q, k, v, seen, dropout_keys, self.dropout_rate))

    def probabilities(self, x_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """What each token looks at, without dropout: float32 [B, H, L, L], looking x looked at."""
        q, k = project(x_BLD, self.query, self.key)
        return attention_probabilities(q, k, visible(sequence_ids, self.causal))


def visible(sequence_ids: jax.Array, causal: bool) -> jax.Array:
    """Which token (last dim) each token (middle dim) sees: [B, L] -> bool [B, L, L].

    Padding (id 0) sees padding, so that no row of the softmax is empty.
    """
    same = sequence_ids[:, :, None] == sequence_ids[:, None, :]
    return same & jnp.tri(same.shape[-1], dtype=bool) if causal else same


def attention_probabilities(q: jax.Array, k: jax.Array, seen: jax.Array) -> jax.Array:
    """softmax(q k / sqrt(K)) over the tokens that are seen: [B, L, H, K] twice, bool [B, L, L] -> float32 [B, H, L, L].

    The softmax is computed in float32 whatever the dtype of q.
    """
    scores = jnp.einsum("BLHK,BMHK->BHLM", q * (q.shape[-1] ** -0.5), k, preferred_element_type=jnp.float32)
    return jax.nn.softmax(jnp.where(seen[:, None], scores, jnp.finfo(jnp.float32).min), axis=-1)


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    seen: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
) -> jax.Array:
    """Each token's mean of v, weighed by `attention_probabilities`; q, k, v and result [B, L, H, K]."""
    probs = attention_probabilities(q, k, seen)
    probs = dropout(probs.astype(q.dtype), dropout_keys, ATTENTION_PROBS, dropout_rate)
    return jnp.einsum("BHLM,BMHK->BLHK", probs, v)
