"""Cross-entropy over the vocabulary, with its gradient computed in the same pass.

The logits of the masked tokens are the largest array of a small BERT's step. JAX's own derivative writes and reads them
several times. Here each chunk of tokens computes its logits, its part of the loss and its part of every gradient before
the next chunk begins, so that only one chunk of logits exists at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.parallel.sharding import constrain


class Sums(NamedTuple):
    """Sums over the weighted tokens, float32 scalars: negative log-likelihood, and weight of the right predictions."""

    loss: jax.Array
    hits: jax.Array


def vocabulary_cross_entropy(
    hidden_ND: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_N: jax.Array,
    weights_N: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> Sums:
    """Sum of weighted -log softmax(hidden table^T + bias)[label] over N tokens, differentiable in the first three.

    table [V padded, D] and bias [V padded] are float32, hidden [N, D] has the compute dtype, labels are int32, weights
    float32. D is the width of the table. Entries from vocab_size on are padding and get no probability. The logits of
    `chunk` tokens exist at a time.
    """
    rows = hidden_ND.shape[0]
    pieces = -(-rows // min(chunk, rows))
    size = -(-rows // pieces)
    short = pieces * size - rows

    def split(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, short), *[(0, 0)] * (x.ndim - 1))).reshape(pieces, size, *x.shape[1:])

    # Padding entries get the lowest bias once, outside the loop over chunks.
    real = jnp.arange(bias_V.shape[0]) < vocab_size
    bias = jnp.where(real, bias_V, jnp.finfo(jnp.float32).min)
    table = table_VD.astype(hidden_ND.dtype)
    return _cross_entropy(split(hidden_ND), table, bias, split(labels_N), split(weights_N))


@jax.custom_vjp
def _cross_entropy(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    def add(total: Sums, part: tuple[jax.Array, ...]) -> tuple[Sums, None]:
        sums, _ = _chunk(table, bias, *part)
        return jax.tree.map(jnp.add, total, sums), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, Sums(zero, zero), (hidden, labels, weights))[0]


def _chunk(
    table: jax.Array, bias: jax.Array, hidden: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[Sums, jax.Array]:
    """A chunk's sums, and the gradient of its loss with respect to its logits, [n, V]."""
    logits = jnp.einsum("nD,VD->nV", hidden, table, preferred_element_type=jnp.float32) + bias
    logits = constrain(logits, "act_batch", "act_vocab")
    highest = jnp.max(logits, axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - highest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    nll = jnp.log(total[:, 0]) + highest[:, 0] - picked
    hits = (picked >= highest[:, 0]).astype(jnp.float32)
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) == labels[:, None]
    by_logits = exponentials * (weights[:, None] / total) - jnp.where(chosen, weights[:, None], 0.0)
    return Sums(jnp.sum(nll * weights), jnp.sum(hits * weights)), by_logits


def _forward(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[Sums, tuple[jax.Array, jax.Array, jax.Array]]:
    def add(total: tuple, part: tuple[jax.Array, ...]) -> tuple[tuple, jax.Array]:
        sums, by_logits = _chunk(table, bias, *part)
        by_logits = by_logits.astype(hidden.dtype)
        by_hidden = by_logits @ table
        by_table = jnp.einsum("nV,nD->VD", by_logits, part[0], preferred_element_type=jnp.float32)
        # A product with ones: the sum over rows is several times slower on a CPU.
        by_bias = jnp.einsum("n,nV->V", jnp.ones_like(by_logits[:, 0]), by_logits, preferred_element_type=jnp.float32)
        return jax.tree.map(jnp.add, total, (sums, by_table, by_bias)), by_hidden

    zero = jnp.zeros((), jnp.float32)
    start = (Sums(zero, zero), jnp.zeros(table.shape, jnp.float32), jnp.zeros(bias.shape, jnp.float32))
    (sums, by_table, by_bias), by_hidden = jax.lax.scan(add, start, (hidden, labels, weights))
    return sums, (by_hidden, by_table.astype(table.dtype), by_bias)


def _backward(gradients: tuple[jax.Array, jax.Array, jax.Array], cotangent: Sums) -> tuple:
    by_hidden, by_table, by_bias = gradients
    by_floats = jax.tree.map(lambda g: g * cotangent.loss.astype(g.dtype), (by_hidden, by_table, by_bias))
    return (*by_floats, None, None)  # labels and weights


_cross_entropy.defvjp(_forward, _backward)
