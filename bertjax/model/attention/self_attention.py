"""Multi-head self-attention within sequences of equal id."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend, attend, attention_probabilities, visible
from bertjax.model.attention.block_sparse import block_sparse_attention
from bertjax.model.attention.positions import alibi_slopes, rotated
from bertjax.model.attention.sparse import Pattern
from bertjax.model.attention.windows import GlobalTokens, global_attention, take_tokens
from bertjax.model.layers import product, weight, zeros
from bertjax.parallel.sharding import constrain


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """How many tokens on either side a token sees, for each layer; 0: all of its sequence.

    Of a model with a window, every `global_every`-th layer from the first has none (ModernBERT, section 2.1.1).
    """
    every = config.global_every
    return tuple(0 if every and n % every == 0 else config.window for n in range(config.num_hidden_layers))


class Projection(nnx.Module):
    """The parameters of one of query, key and value."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        shape = (config.hidden_size, heads, head_dim)
        self.kernel = weight(rngs, shape, ("embed", "heads", "head_dim"), config)
        self.bias = zeros((heads, head_dim), ("heads", "head_dim")) if config.attention_bias == "all" else None


def project(x_BLD: jax.Array, *projections: Projection) -> tuple[jax.Array, ...]:
    """[B, L, D] -> [B, L, H, K] for each projection, in one product: a wide matmul comes nearer to the peak."""
    kernel_DTHK = jnp.stack([p.kernel[...] for p in projections], axis=1).astype(x_BLD.dtype)
    y_BLTHK = product(x_BLD, kernel_DTHK)
    if projections[0].bias is not None:
        y_BLTHK += jnp.stack([p.bias[...] for p in projections]).astype(x_BLD.dtype)
    parts = [y_BLTHK[:, :, i] for i in range(len(projections))]
    return tuple(constrain(part, "act_batch", "act_length", "act_heads", "head_dim") for part in parts)


class OutputProjection(nnx.Module):
    """The dense layer on the joined heads: [B, L, H, K] -> [B, L, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        sizes = heads, head_dim, config.hidden_size
        self.kernel = weight(rngs, sizes, ("heads", "head_dim", "embed"), config, "output")
        self.bias = zeros((config.hidden_size,), ("hidden",)) if config.attention_bias == "all" else None

    def __call__(self, x_BLHK: jax.Array) -> jax.Array:
        H, K, D = self.kernel.shape
        joined = x_BLHK.reshape(*x_BLHK.shape[:-2], H * K)
        y = product(joined, self.kernel[...].reshape(H * K, D).astype(x_BLHK.dtype))
        y = y if self.bias is None else y + self.bias[...].astype(y.dtype)
        return constrain(y, "act_batch", "act_length", "act_embed")


class SelfAttention(nnx.Module):
    """Scaled dot-product attention (paper, section 3; modeling.py `attention_layer`), [B, L, D] -> [B, L, D].

    A token sees the tokens with its own sequence id: within its sequence when rows are packed, and never padding. In a
    causal model it sees those up to itself, and with a window those at most so many tokens away.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.query = Projection(config, rngs=rngs)
        self.key = Projection(config, rngs=rngs)
        self.value = Projection(config, rngs=rngs)
        self.output = OutputProjection(config, rngs=rngs)
        if config.global_projections:
            self.query_global = Projection(config, rngs=rngs)
            self.key_global = Projection(config, rngs=rngs)
            self.value_global = Projection(config, rngs=rngs)
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
        pattern: Pattern | None = None,
    ) -> jax.Array:
        q, k, v = self.projected(x_BLD, sequence_ids, packed, window)
        dropped = dropout_keys, self.dropout_rate
        if pattern is not None and pattern.tokens is not None:
            of_globals = self._of_globals(x_BLD, (q, k, v), pattern.tokens)
            return self.output(
                global_attention((q, k, v), of_globals, sequence_ids, pattern.tokens, *dropped, window=window)
            )
        if pattern is not None:
            block = self.config.attention_block
            return self.output(block_sparse_attention(q, k, v, sequence_ids, pattern.blocks, *dropped, block=block))
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

    def _of_globals(
        self, x_BLD: jax.Array, ordinary: tuple[jax.Array, jax.Array, jax.Array], tokens: GlobalTokens
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries of the global tokens, [B, G, H, K], and the keys and values that they see, [B, L, H, K] each."""
        if not self.config.global_projections:
            q, k, v = ordinary
            return take_tokens(q, tokens), k, v
        (q,) = project(take_tokens(x_BLD, tokens), self.query_global)
        return q, *project(x_BLD, self.key_global, self.value_global)

    def projected(
        self, x_BLD: jax.Array, sequence_ids: jax.Array, packed: bool, window: int = 0
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries and keys, rotated where positions are, and values: [B, L, H, K] each."""
        q, k, v = project(x_BLD, self.query, self.key, self.value)
        return *self.placed(q, k, sequence_ids, packed, window), v

    def probabilities(self, x_BLD: jax.Array, sequence_ids: jax.Array, window: int = 0) -> jax.Array:
        """The attention probabilities without dropout: float32 [B, H, L (query), L (key)]."""
        q, k = self.placed(*project(x_BLD, self.query, self.key), sequence_ids, True, window)
        return attention_probabilities(q, k, visible(sequence_ids, self.causal, window), self.slopes)

    def placed(
        self, q: jax.Array, k: jax.Array, sequence_ids: jax.Array, packed: bool, window: int
    ) -> tuple[jax.Array, jax.Array]:
        """Queries and keys as the scores are made of them: rotated by their positions, where the model says so."""
        if self.config.position_embedding != "rope":
            return q, k
        return rotated(self.config, q, k, sequence_ids, packed, window)
