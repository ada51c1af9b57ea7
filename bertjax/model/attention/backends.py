"""Scaled dot-product attention within sequences of equal id: the XLA reference and the fused backends.

All take q, k, v [B, L, H, K] and sequence_ids int32 [B, L], and return [B, L, H, K]. They agree on real tokens; their
outputs at padding differ, and nothing reads those. The fused backends never store the probabilities, which makes them
fast on long rows and rules out dropout on a GPU.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from bertjax.config.model import WHOLE_ROWS
from bertjax.model.attention import windows
from bertjax.model.attention.kernels import QKV, TOKENS, per_device
from bertjax.model.attention.positions import attention_by_queries, with_alibi
from bertjax.model.dropout import ATTENTION_PROBS, dropout
from bertjax.model.layers import recomputed
from bertjax.model.products import attention_scores, softmax_over, weighted_values

# `mosaic_interpreted` runs the kernel op by op on any platform, for tests without a TPU.
Backend = Literal["xla", "cudnn", "mosaic", "mosaic_interpreted"]


def attend(
    backend: Backend,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    *,
    packed: bool,
    causal: bool,
    window: int = 0,
    slopes: tuple[float, ...] = (),
    bias: jax.Array | None = None,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
) -> jax.Array:
    """Compute softmax(q k / sqrt(K)) v over the tokens of `visible`; `slopes` as in `with_alibi`.

    A `bias`, float32 [H, L, L], is added to the scores; only XLA supports it.

    `packed=False` means that every row is one sequence and then padding. `choose_attention` decides whether a backend
    supports the arguments. cudnn lacks windows: layers with a window use XLA. XLA computes windows in blocks where
    that pays, and other rows of more than `WHOLE_ROWS` tokens by blocks of queries.
    """
    if backend == "xla" or (backend == "cudnn" and window):
        inputs = q, k, v, sequence_ids, dropout_keys, dropout_rate
        if window and windows.pays(q.shape[1], window):
            return windows.window_attention(*inputs, window=window, causal=causal, slopes=slopes)
        if not is_symbolic_dim(q.shape[1]) and q.shape[1] > WHOLE_ROWS:
            scale = q.shape[-1] ** -0.5
            return attention_by_queries(*inputs, scale=scale, window=window, causal=causal, slopes=slopes)
        seen = visible(sequence_ids, causal, window)
        return xla_attention(q, k, v, seen, dropout_keys, dropout_rate, slopes, bias)
    assert bias is None, f"{backend} does not support biases of scores"
    if backend in ("mosaic", "mosaic_interpreted"):
        # Imported here because Pallas takes a quarter of a second that other runs do not need to spend.
        from bertjax.model.attention.mosaic import mosaic_attention
        from bertjax.model.attention.mosaic_blocks import Settings

        rate = 0.0 if dropout_keys is None else dropout_rate
        interpret = backend == "mosaic_interpreted"
        settings = Settings(q.shape[-1], rate, causal, window, alibi=bool(slopes), interpret=interpret)
        return mosaic_attention(q, k, v, sequence_ids, dropout_keys, slopes, settings)
    assert not slopes, f"{backend} does not support ALiBi"
    assert dropout_keys is None or dropout_rate == 0.0, f"{backend} does not support dropout"
    kernel = partial(cudnn_attention, packed=packed, causal=causal)
    return per_device(kernel, (q, QKV), (k, QKV), (v, QKV), (sequence_ids, TOKENS))


def visible(sequence_ids: jax.Array, causal: bool, window: int = 0) -> jax.Array:
    """Compute which token (last dim) each token (middle dim) sees: [B, L] -> bool [B, L, L].

    A token sees the tokens of its sequence: in a causal model those up to itself, with a window those at most
    `window` tokens away on either side. Padding (id 0) sees padding, so that no row of the softmax is empty.
    """
    seen = sequence_ids[:, :, None] == sequence_ids[:, None, :]
    length = seen.shape[-1]
    if causal:
        seen &= jnp.tri(length, dtype=bool)
    if window:
        seen &= jnp.tri(length, k=window, dtype=bool) & ~jnp.tri(length, k=-window - 1, dtype=bool)
    return seen


def attention_probabilities(
    q: jax.Array, k: jax.Array, seen: jax.Array, slopes: tuple[float, ...] = (), bias: jax.Array | None = None
) -> jax.Array:
    """softmax(q k / sqrt(K)) over visible tokens: q, k [B, L, H, K], seen bool [B, L, L] -> float32 [B, H, L, L].

    The softmax is computed in float32 whatever the dtype of q.
    """
    scores = attention_scores(q, k)
    scores = scores if bias is None else scores + bias
    return softmax_over(with_alibi(scores, slopes) if slopes else scores, seen, jnp.float32)


def xla_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    seen: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    slopes: tuple[float, ...] = (),
    bias: jax.Array | None = None,
) -> jax.Array:
    """Compute the formula over visible tokens (`seen`, bool [B, L, L]), with `bias` [H, L, L] added to the scores.

    Of the arrays [B, H, L, L], the backward pass keeps only the probabilities in the dtype of v, and recomputes the
    dropout mask; with `slopes` it keeps none, and recomputes q k too.
    """

    def mix(probs: jax.Array, v: jax.Array, keys: jax.Array | None) -> jax.Array:
        return weighted_values(dropout(probs, keys, ATTENTION_PROBS, dropout_rate), v)

    def attention(q: jax.Array, k: jax.Array, seen: jax.Array, v: jax.Array, keys: jax.Array | None) -> jax.Array:
        scores = attention_scores(q, k)
        if bias is not None:
            scores += bias
        if slopes:
            scores = with_alibi(scores, slopes)
        return recomputed(mix)(softmax_over(scores, seen, v.dtype), v, keys)

    return (recomputed(attention) if slopes else attention)(q, k, seen, v, dropout_keys)


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, sequence_ids: jax.Array, *, packed: bool, causal: bool
) -> jax.Array:
    """Call cuDNN's flash attention. It lacks sequence ids: rows are passed by their lengths, packed rows by a mask.

    The mask becomes a bias [B, 1, L, L] in the dtype of q while a layer runs: 134 MB for a row of 8,192 in bfloat16.
    """
    fused = partial(jax.nn.dot_product_attention, q, k, v, implementation="cudnn")
    if packed:
        return fused(mask=visible(sequence_ids, causal)[:, None])
    # At least 1, also in rows that pad a batch: a softmax over nothing gives NaN, and NaN times a weight of 0 is NaN.
    lengths = jnp.maximum(jnp.sum(sequence_ids > 0, axis=1, dtype=jnp.int32), 1)
    return fused(is_causal=causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
