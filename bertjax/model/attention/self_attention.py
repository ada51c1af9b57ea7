"""Multi-head self-attention within sequences of equal id."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend, attend, attention_probabilities, visible
from bertjax.model.attention.block_sparse import block_sparse_attention
from bertjax.model.attention.kernels import JOINED_HEADS
from bertjax.model.attention.positions import alibi_slopes, rotated
from bertjax.model.attention.relative import DistanceProjections, disentangled_attention, disentangled_probabilities
from bertjax.model.attention.sparse import Pattern
from bertjax.model.attention.windows import GlobalTokens, global_attention, take_tokens
from bertjax.model.dropout import fold
from bertjax.model.layers import LayerNorm, recomputed
from bertjax.model.parameters import weight, zeros
from bertjax.model.products import plus_bias, product, unstack
from bertjax.parallel.sharding import constrain, devices_along, rows_are_whole


def layer_windows(config: ModelConfig) -> tuple[int, ...]:
    """The window of each layer: tokens that a token sees on either side; 0: all of its sequence.

    In a model with windows, every `global_every`-th layer from `first_global` on has none (ModernBERT, section 2.1.1).
    """
    every, first = config.global_every, config.first_global
    return tuple(0 if every and n % every == first else config.window for n in range(config.num_hidden_layers))


class Projection(nnx.Module):
    """The parameters of the query, key or value projection; keys lack a bias with `attention_bias` query_value.

    With grouped queries (Ainslie et al. 2023), keys and values have fewer heads: `heads`.
    """

    def __init__(self, config: ModelConfig, is_key: bool = False, heads: int = 0, *, rngs: nnx.Rngs) -> None:
        heads, head_dim = heads or config.num_attention_heads, config.hidden_size // config.num_attention_heads
        shape = (config.hidden_size, heads, head_dim)
        self.kernel = weight(rngs, shape, ("embed", "heads", "head_dim"), config)
        has_bias = config.attention_bias != "none" and not (is_key and config.attention_bias == "query_value")
        self.bias = zeros((heads, head_dim), ("heads", "head_dim")) if has_bias else None


def project(x_BLD: jax.Array, *projections: Projection, joined: bool = False) -> tuple[jax.Array, ...]:
    """Apply each projection, [B, L, D] -> [B, L, H, K], in one product: a wide matmul comes closer to peak throughput.

    Consecutive projections share a product if they have the same number of heads. `joined` computes the heads as one
    dim, for kernels that read them so: in an array that ends with the 64 dims of a head, XLA for TPUs puts tokens last
    in memory, and would have to transpose it for the kernel.
    """
    groups = [[*group] for _, group in itertools.groupby(projections, lambda p: p.kernel.shape[1])]
    if len(groups) > 1:
        return tuple(part for group in groups for part in project(x_BLD, *group, joined=joined))
    kernel = jnp.stack([p.kernel[...] for p in projections], axis=1)  # [D, T, H, K]
    heads = kernel.shape[2:]
    out = (heads[0] * heads[1],) if joined else heads
    y = product(x_BLD, kernel.reshape(*kernel.shape[:2], *out))
    if any(p.bias is not None for p in projections):
        biases = [jnp.zeros(heads, jnp.float32) if p.bias is None else p.bias[...] for p in projections]
        y = plus_bias(y, jnp.stack(biases).reshape(len(biases), *out))
    parts = [part.reshape(*part.shape[:2], *heads) for part in unstack(y, axis=2)]
    return tuple(constrain(part, "act_batch", "act_length", "act_heads", "head_dim") for part in parts)


Norm = Callable[[jax.Array], jax.Array]  # [B, L, D] -> [B, L, D], in front of attention


def unchanged(x_BLD: jax.Array) -> jax.Array:
    """Return x: the norm of layers that have none in front of attention."""
    return x_BLD


def for_each_query(x_BLGK: jax.Array, heads: int) -> jax.Array:
    """Repeat each head of keys or values for its group of queries: [B, L, G, K] -> [B, L, `heads`, K]."""
    B, L, G, K = x_BLGK.shape
    if heads == G:
        return x_BLGK
    repeated = jnp.broadcast_to(x_BLGK[:, :, :, None], (B, L, G, heads // G, K)).reshape(B, L, heads, K)
    return constrain(repeated, "act_batch", "act_length", "act_heads", "head_dim")


def _normalize_heads(x_BLHK: jax.Array, norm: LayerNorm | None) -> jax.Array:
    """Normalise all heads of a token together, if `qk_norm`."""
    if norm is None:
        return x_BLHK
    normed = norm(x_BLHK.reshape(*x_BLHK.shape[:2], -1)).reshape(x_BLHK.shape)
    return constrain(normed, "act_batch", "act_length", "act_heads", "head_dim")


def with_whole_rows(x_BLHK: jax.Array) -> jax.Array:
    """Move the mesh axis `length`, if there is one, from tokens to heads: every query needs all keys of its row.

    Adds heads of zeros if the devices do not divide the heads. Source: DeepSpeed-Ulysses (arXiv 2309.14509).
    """
    if rows_are_whole():
        return x_BLHK
    missing = -x_BLHK.shape[2] % devices_along("row_heads")
    padded = jnp.pad(x_BLHK, [(0, 0), (0, 0), (0, missing), (0, 0)])
    return constrain(padded, "act_batch", "row_length", "row_heads", "head_dim")


def with_own_tokens(x_BLHK: jax.Array, heads: int) -> jax.Array:
    """Undo `with_whole_rows`."""
    if rows_are_whole():
        return x_BLHK
    return constrain(x_BLHK[:, :, :heads], "act_batch", "act_length", "act_heads", "head_dim")


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


class LayerInputs(NamedTuple):
    """The inputs of every layer besides the hidden states of the layer below."""

    sequence_ids: jax.Array  # int32 [B, L]: which of its row's sequences a token belongs to; 0: padding
    dropout_keys: jax.Array | None = None  # uint32 [B]; None: no dropout
    packed: bool = True  # False: every row is one sequence from position 0 on, then padding
    backend: Backend = "xla"
    window: int = 0  # tokens that a token sees on either side; 0: all of its sequence
    distances: jax.Array | None = None  # vectors of relative distances, [S, D] (DeBERTa)
    pattern: Pattern | None = None  # global tokens or chosen blocks
    score_bias: jax.Array | None = None  # added to the scores of every layer, float32 [H, L, L] (MPNet)

    def for_layer(self, number: jax.Array, window: int) -> LayerInputs:
        """The inputs of one layer, by its number (uint32 [], from 0): its own dropout keys, window and blocks."""
        keys = None if self.dropout_keys is None else fold(self.dropout_keys, number + 1)
        pattern = None if self.pattern is None else self.pattern.for_layer(number)
        return self._replace(dropout_keys=keys, window=window, pattern=pattern)


class SelfAttention(nnx.Module):
    """Scaled dot-product attention (paper, section 3; modeling.py `attention_layer`), [B, L, D] -> [B, L, D].

    A token sees the tokens with its own sequence id: within its sequence when rows are packed, and never padding. In a
    causal model it sees those up to itself, and with a window those at most `window` tokens away. Relative positions
    add terms of the distance vectors to the scores.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.query = Projection(config, rngs=rngs)
        self.key = Projection(config, is_key=True, heads=config.key_value_heads, rngs=rngs)
        self.value = Projection(config, heads=config.key_value_heads, rngs=rngs)
        separate = config.position_embedding == "relative" and not config.relative_shared
        self.relative_query = Projection(config, rngs=rngs) if separate else None
        self.relative_key = Projection(config, is_key=True, rngs=rngs) if separate else None
        self.query_norm = LayerNorm(config, config.hidden_size, bias=False) if config.qk_norm else None
        self.key_norm = LayerNorm(config, config.hidden_size, bias=False) if config.qk_norm else None
        self.output = OutputProjection(config, rngs=rngs)
        self.query_global = Projection(config, rngs=rngs) if config.global_projections else None
        self.key_global = Projection(config, rngs=rngs) if config.global_projections else None
        self.value_global = Projection(config, rngs=rngs) if config.global_projections else None
        self.dropout_rate = config.attention_probs_dropout_prob
        self.causal, self.config = config.causal, config
        self.slopes = alibi_slopes(config.num_attention_heads) if config.position_embedding == "alibi" else ()

    def __call__(
        self, x_BLD: jax.Array, inputs: LayerInputs, queries_BLD: jax.Array | None = None, norm: Norm = unchanged
    ) -> jax.Array:
        """Compute attention on norm(x); with `queries_BLD`, queries are projected from that instead."""
        q, k, v = (with_whole_rows(part) for part in self.projected(x_BLD, inputs, queries_BLD, norm))
        sequence_ids, keys, pattern = inputs.sequence_ids, inputs.dropout_keys, inputs.pattern
        if inputs.distances is not None:
            distances = self._project_distances(inputs.distances)
            attended = disentangled_attention(self.config, q, k, v, distances, sequence_ids, keys, inputs.backend)
        elif pattern is not None and pattern.blocks is not None:
            attended = block_sparse_attention(
                q,
                k,
                v,
                sequence_ids,
                pattern.blocks,
                keys,
                self.dropout_rate,
                block=self.config.attention_block,
                backend=inputs.backend,
            )
        elif pattern is not None and pattern.tokens is not None:
            attended = global_attention(
                (q, k, v),
                self._project_globals(norm(x_BLD), q, k, v, pattern.tokens),
                sequence_ids,
                pattern.tokens,
                keys,
                self.dropout_rate,
                window=inputs.window,
            )
        else:
            attended = attend(
                inputs.backend,
                q,
                k,
                v,
                sequence_ids,
                packed=inputs.packed,
                causal=self.causal,
                window=inputs.window,
                slopes=self.slopes and (*self.slopes, *[0.0] * (q.shape[2] - len(self.slopes))),
                bias=inputs.score_bias,
                dropout_keys=keys,
                dropout_rate=self.dropout_rate,
            )
        return self.output(with_own_tokens(attended, self.config.num_attention_heads))

    def projected(
        self, x_BLD: jax.Array, inputs: LayerInputs, queries_BLD: jax.Array | None = None, norm: Norm = unchanged
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Project norm(x) to queries, keys and values, [B, L, H, K] each, and apply rotary positions, if any.

        Keys and values of grouped queries are repeated, so that every backend supports them.
        """
        if queries_BLD is None:
            joined = inputs.backend in JOINED_HEADS

            def projections(x_BLD: jax.Array) -> tuple[jax.Array, ...]:
                return project(norm(x_BLD), self.query, self.key, self.value, joined=joined)

            q, k, v = recomputed(projections)(x_BLD)
        else:
            (q,), (k, v) = project(queries_BLD, self.query), project(norm(x_BLD), self.key, self.value)
        q, k = self._with_positions(q, k, inputs)
        return q, for_each_query(k, q.shape[2]), for_each_query(v, q.shape[2])

    def probabilities(self, x_BLD: jax.Array, inputs: LayerInputs) -> jax.Array:
        """Compute the attention probabilities without dropout: float32 [B, H, L (query), L (key)]."""
        q, k = project(x_BLD, self.query, self.key)
        q, k = self._with_positions(q, k, inputs)
        k = for_each_query(k, q.shape[2])
        seen = visible(inputs.sequence_ids, self.causal, inputs.window)
        if inputs.distances is not None:
            return disentangled_probabilities(self.config, q, k, self._project_distances(inputs.distances), seen)
        return attention_probabilities(q, k, seen, self.slopes, inputs.score_bias)

    def _with_positions(self, q: jax.Array, k: jax.Array, inputs: LayerInputs) -> tuple[jax.Array, jax.Array]:
        q, k = _normalize_heads(q, self.query_norm), _normalize_heads(k, self.key_norm)
        if self.config.position_embedding != "rope":
            return q, k
        return rotated(self.config, q, k, inputs.sequence_ids, inputs.packed, inputs.window)

    def _project_distances(self, table_SD: jax.Array) -> DistanceProjections:
        """Project the distance vectors with the kernels of tokens or, unless `relative_shared`, with their own."""
        q, k = project(table_SD[None], self.relative_query or self.query, self.relative_key or self.key)
        return DistanceProjections(q[0].swapaxes(0, 1), k[0].swapaxes(0, 1))

    def _project_globals(
        self, x_BLD: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, tokens: GlobalTokens
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Compute queries of the global tokens, [B, G, H, K], and the keys and values that they see, [B, L, H, K]."""
        if self.query_global is None or self.key_global is None or self.value_global is None:
            return take_tokens(q, tokens), k, v
        (q,) = project(take_tokens(x_BLD, tokens), self.query_global)
        k, v = project(x_BLD, self.key_global, self.value_global)
        return q, k, v
