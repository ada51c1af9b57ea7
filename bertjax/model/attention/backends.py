"""Scaled dot-product attention within sequences of equal id, by each back end that can compute it.

All take q, k, v [B, L, H, K] and sequence_ids int32 [B, L], and return [B, L, H, K]. They agree on the real tokens;
their outputs at padding differ, and nothing reads those. XLA is the reference. The fused back ends never store the
probabilities: this makes them fast on long rows, and is why they have no dropout.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax.export import is_symbolic_dim

from bertjax.model.attention import windows
from bertjax.model.attention.kernels import per_device, splash_attention
from bertjax.model.attention.positions import attention_by_queries, with_alibi
from bertjax.model.dropout import ATTENTION_PROBS, dropout
from bertjax.model.layers import recomputed
from bertjax.model.products import attention_scores, softmax, weighted_values
from bertjax.model.scan_constants import beside

# `splash_interpreted` runs splash's kernels op by op on any platform, for tests without a TPU.
Backend = Literal["xla", "cudnn", "splash", "splash_interpreted"]
WHOLE_ROWS = 1024  # the longest rows whose scores XLA computes at once: of 8,192 tokens and 12 heads they are 3.2 GB


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
    dropout_keys: jax.Array | None,
    dropout_rate: float,
) -> jax.Array:
    """softmax(q k / sqrt(K)) v over the tokens that `visible` names; `slopes` as `with_alibi` has them.

    `packed=False` means that every row is one sequence and then padding. `choose_attention` decides whether a
    back end can compute this. A window is XLA's where the back end is cudnn, which has none. XLA computes windows in
    blocks where that pays, and other rows of more than `WHOLE_ROWS` tokens by blocks of queries.
    """
    dropped = dropout_keys, dropout_rate
    if backend == "xla" or (backend == "cudnn" and window):
        of_row = {"window": window, "causal": causal, "slopes": slopes}
        if windows.pays(q.shape[1], window):
            return windows.window_attention(q, k, v, sequence_ids, *dropped, **of_row)
        if not is_symbolic_dim(q.shape[1]) and q.shape[1] > WHOLE_ROWS:
            return attention_by_queries(q, k, v, sequence_ids, *dropped, scale=q.shape[-1] ** -0.5, **of_row)
        return xla_attention(q, k, v, visible(sequence_ids, causal, window), *dropped, slopes)
    assert not slopes, f"{backend} has no slopes"
    assert dropout_keys is None or dropout_rate == 0.0, f"{backend} has no dropout"
    kernel = {
        "cudnn": partial(cudnn_attention, packed=packed, causal=causal),
        "splash": partial(splash_attention, causal=causal, window=window),
        "splash_interpreted": partial(splash_attention, causal=causal, window=window, interpret=True),
    }[backend]
    return per_device(kernel, q, k, v, sequence_ids)


def visible(sequence_ids: jax.Array, causal: bool, window: int = 0) -> jax.Array:
    """Which token (last dim) each token (middle dim) sees: [B, L] -> bool [B, L, L].

    A token sees the tokens of its sequence: in a causal model those up to itself, with a window those at most so many
    tokens away on either side. Padding (id 0) sees padding, so that no row of the softmax is empty.
    """
    seen = sequence_ids[:, :, None] == sequence_ids[:, None, :]
    length = seen.shape[-1]
    if causal:
        seen &= jnp.tri(length, dtype=bool)
    if window:
        seen &= jnp.tri(length, k=window, dtype=bool) & ~jnp.tri(length, k=-window - 1, dtype=bool)
    return seen


def attention_probabilities(q: jax.Array, k: jax.Array, seen: jax.Array, slopes: tuple[float, ...] = ()) -> jax.Array:
    """softmax(q k / sqrt(K)) over visible tokens: q, k [B, L, H, K], seen bool [B, L, L] -> float32 [B, H, L, L].

    The softmax is computed in float32 whatever the dtype of q.
    """
    return _softmax(with_alibi(attention_scores(q, k), slopes), seen)


def _softmax(scores: jax.Array, seen: jax.Array) -> jax.Array:
    seen, lowest = beside(scores, (seen, jnp.finfo(jnp.float32).min))
    return softmax(jnp.where(seen[:, None], scores, jax.lax.stop_gradient(lowest)))


def xla_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    seen: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    slopes: tuple[float, ...] = (),
) -> jax.Array:
    """The formula over visible tokens (`seen`, bool [B, L, L]); of [B, H, L, L] gradients keep only the scores.

    With `slopes` they keep none: the backward pass computes q k again.
    """

    def mixed(scores: jax.Array, seen: jax.Array, v: jax.Array, keys: jax.Array | None) -> jax.Array:
        probs = _softmax(with_alibi(scores, slopes), seen).astype(v.dtype)
        return weighted_values(dropout(probs, keys, ATTENTION_PROBS, dropout_rate), v)

    if slopes:
        return recomputed(lambda q, k, *others: mixed(attention_scores(q, k), *others))(q, k, seen, v, dropout_keys)
    return recomputed(mixed)(attention_scores(q, k), seen, v, dropout_keys)


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, sequence_ids: jax.Array, *, packed: bool, causal: bool
) -> jax.Array:
    """cuDNN's flash attention. It has no sequence ids: rows are passed by their lengths, packed rows by a mask.

    The mask becomes an addend [B, 1, L, L] in the dtype of q while a layer runs: 134 MB for a row of 8,192 in bfloat16.
    """
    fused = partial(jax.nn.dot_product_attention, q, k, v, implementation="cudnn")
    if packed:
        return fused(mask=visible(sequence_ids, causal)[:, None])
    # Never 0, in a row that fills up a batch: NaN of a softmax over nothing, times its weight 0, would be NaN.
    lengths = jnp.maximum(jnp.sum(sequence_ids > 0, axis=1, dtype=jnp.int32), 1)
    return fused(is_causal=causal, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
