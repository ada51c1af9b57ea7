"""Multi-head self-attention within sequences of equal id."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend, attend, attention_probabilities, visible
from bertjax.model.attention.positions import alibi_slopes, rotated
from bertjax.model.attention.relative import disentangled_attention, disentangled_probabilities, project_distances
from bertjax.model.attention.sparse import GLOBAL_PROJECTIONS, Pattern, sparse_attention
from bertjax.model.parameters import weight, zeros
from bertjax.model.products import plus_bias, product, unstack
from bertjax.parallel.sharding import constrain


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """How many tokens on either side a token sees, for each layer; 0: all of its sequence.

    Of a model with a window, every `global_every`-th layer from the first has none (ModernBERT, section 2.1.1).
    """
    every = config.global_every
    return tuple(0 if every and n % every == 0 else config.window for n in range(config.num_hidden_layers))


class Projection(nnx.Module):
    """The parameters of one of query, key and value; keys lack a bias with `attention_bias` query_value."""

    def __init__(self, config: ModelConfig, is_key: bool = False, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        shape = (config.hidden_size, heads, head_dim)
        self.kernel = weight(rngs, shape, ("embed", "heads", "head_dim"), config)
        has_bias = config.attention_bias != "none" and not (is_key and config.attention_bias == "query_value")
        self.bias = zeros((heads, head_dim), ("heads", "head_dim")) if has_bias else None


def project(x_BLD: jax.Array, *projections: Projection) -> tuple[jax.Array, ...]:
    """[B, L, D] -> [B, L, H, K] for each projection, in one product: a wide matmul comes nearer to the peak."""
    kernel_DTHK = jnp.stack([p.kernel[...] for p in projections], axis=1)
    y_BLTHK = product(x_BLD, kernel_DTHK)
    if any(p.bias is not None for p in projections):
        none = jnp.zeros(kernel_DTHK.shape[2:], jnp.float32)
        biases = [none if p.bias is None else p.bias[...] for p in projections]
        y_BLTHK = plus_bias(y_BLTHK, jnp.stack(biases))
    parts = unstack(y_BLTHK, axis=2)
    return tuple(constrain(part, "act_batch", "act_length", "act_heads", "head_dim") for part in parts)


class OutputProjection(nnx.Module):
    """The dense layer on the joined heads: [B, L, H, K] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        sizes = heads, head_dim, config.hidden_size
        self.kernel = weight(rngs, sizes, ("heads", "head_dim", "embed"), config, "output")
        self.bias = zeros((config.hidden_size,), ("hidden",)) if config.attention_bias != "none" else None

    def __call__(self, x_BLHK: jax.Array) -> jax.Array:
        H, K, D = self.kernel.shape
        joined = x_BLHK.reshape(*x_BLHK.shape[:-2], H * K)
        y = product(joined, self.kernel[...].reshape(H * K, D))
        y = y if self.bias is None else plus_bias(y, self.bias[...])
        return constrain(y, "act_batch", "act_length", "act_embed")


class SelfAttention(nnx.Module):
    """Scaled dot-product attention (paper, section 3; modeling.py `attention_layer`), [B, L, D] -> [B, L, D].

    A token sees the tokens with its own sequence id: within its sequence when rows are packed, and never padding. In a
    causal model it sees those up to itself, and with a window those at most so many tokens away. With relative
    positions the scores have terms of the vectors of distances, `relative`. Queries may be made of `asking` instead.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.query = Projection(config, rngs=rngs)
        self.key = Projection(config, is_key=True, rngs=rngs)
        self.value = Projection(config, rngs=rngs)
        if config.position_embedding == "relative" and not config.relative_shared:
            self.relative_query = Projection(config, rngs=rngs)
            self.relative_key = Projection(config, is_key=True, rngs=rngs)
        self.output = OutputProjection(config, rngs=rngs)
        if config.global_projections:
            for name in GLOBAL_PROJECTIONS:
                setattr(self, name, Projection(config, rngs=rngs))
        self.dropout_rate = config.attention_probs_dropout_prob
        self.causal, self.config = config.causal, config
        self.slopes = alibi_slopes(config.num_attention_heads) if config.position_embedding == "alibi" else ()

    def __call__(
        self,
        x_BLD: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None,
        packed: bool,
        backend: Backend,
        window: int = 0,
        relative: jax.Array | None = None,
        asking: jax.Array | None = None,
        pattern: Pattern | None = None,
    ) -> jax.Array:
        q, k, v = self.projected(x_BLD, sequence_ids, packed, window, asking)
        if relative is not None:
            of_distances = project_distances(self, project, relative)
            return self.output(disentangled_attention(self.config, q, k, v, of_distances, sequence_ids, dropout_keys))
        if pattern is not None:
            how = sequence_ids, dropout_keys, window
            return self.output(sparse_attention(self, project, pattern, x_BLD, (q, k, v), *how))
        attended = attend(
            backend,
            q,
            k,
            v,
            sequence_ids,
            packed=packed,
            causal=self.causal,
            window=window,
            slopes=self.slopes,
            dropout_keys=dropout_keys,
            dropout_rate=self.dropout_rate,
        )
        return self.output(attended)

    def projected(
        self,
        x_BLD: jax.Array,
        sequence_ids: jax.Array,
        packed: bool,
        window: int = 0,
        asking: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries and keys, rotated where positions are, and values: [B, L, H, K] each."""
        if asking is None:
            q, k, v = project(x_BLD, self.query, self.key, self.value)
        else:
            (q,), (k, v) = project(asking, self.query), project(x_BLD, self.key, self.value)
        return *self.with_positions(q, k, sequence_ids, packed, window), v

    def probabilities(
        self, x_BLD: jax.Array, sequence_ids: jax.Array, window: int = 0, relative: jax.Array | None = None
    ) -> jax.Array:
        """The attention probabilities without dropout: float32 [B, H, L (query), L (key)]."""
        q, k = self.with_positions(*project(x_BLD, self.query, self.key), sequence_ids, True, window)
        if relative is not None:
            of_distances = project_distances(self, project, relative)
            return disentangled_probabilities(self.config, q, k, of_distances, visible(sequence_ids, self.causal))
        return attention_probabilities(q, k, visible(sequence_ids, self.causal, window), self.slopes)

    def with_positions(
        self, q: jax.Array, k: jax.Array, sequence_ids: jax.Array, packed: bool, window: int
    ) -> tuple[jax.Array, jax.Array]:
        """Queries and keys as the scores are made of them: rotated by their positions, where the model says so."""
        if self.config.position_embedding != "rope":
            return q, k
        return rotated(self.config, q, k, sequence_ids, packed, window)
