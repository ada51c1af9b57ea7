"""The divergence of one network's token probabilities from another's (Hinton et al. 2015), in chunks of predictions."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bertjax.model.heads import in_chunks, real_bias
from bertjax.model.products import by_rows, column_sums, over_rows
from bertjax.parallel.sharding import constrain


class Vocabulary(NamedTuple):
    """The factors of the logits of N predictions, hidden table^T + bias."""

    hidden: jax.Array  # [N, E] in the compute dtype; E may differ between two networks
    table: jax.Array  # float32 [V padded, E]
    bias: jax.Array  # float32 [V padded]


class SoftSums(NamedTuple):
    """Sums over the weighted predictions, float32 scalars."""

    loss: jax.Array
    agreement: jax.Array  # weight of the predictions whose most likely token is the teacher's


def soft_cross_entropy(
    student: Vocabulary,
    teacher: Vocabulary,
    weights_N: jax.Array,
    *,
    vocab_size: int,
    temperature: float,
    chunk: int,
) -> SoftSums:
    """Sum weighted T² KL(softmax(teacher / T) || softmax(student / T)), differentiable in the student.

    The factor T² keeps the gradient's size at any temperature T (Hinton et al. 2015, section 2). Both networks
    have the same vocabulary and padding; entries from `vocab_size` on are padding and get no probability. weights are
    float32 [N]. Memory holds the logits of `chunk` predictions at a time.
    """
    student_part, teacher_part = (
        (in_chunks(network.hidden, chunk), network.table, real_bias(network.bias / temperature, vocab_size))
        for network in (student, jax.lax.stop_gradient(teacher))
    )
    loss, agreement = _divergence(temperature, student_part, teacher_part, in_chunks(weights_N, chunk))
    return SoftSums(loss * temperature**2, agreement)


_Part = tuple[jax.Array, jax.Array, jax.Array]  # hidden [chunks, n, E], table [V, E], bias / T [V]


def _cast(part: _Part) -> tuple[jax.Array, jax.Array]:
    """Return the table in the dtype of the hidden states, and the bias."""
    hidden, table, bias = part
    return table.astype(hidden.dtype), bias


def _summed_divergence(temperature: float, student: _Part, teacher: _Part, weights: jax.Array) -> SoftSums:
    student_table, teacher_table = _cast(student), _cast(teacher)

    def add(total: SoftSums, part: tuple[jax.Array, ...]) -> tuple[SoftSums, None]:
        sums, _ = _chunk(temperature, student_table, teacher_table, *part)
        return jax.tree.map(jnp.add, total, sums), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, SoftSums(zero, zero), (student[0], teacher[0], weights))[0]


_divergence = jax.custom_vjp(_summed_divergence, nondiff_argnums=(0,))


def _chunk(
    temperature: float,
    student: tuple[jax.Array, jax.Array],
    teacher: tuple[jax.Array, jax.Array],
    student_hidden: jax.Array,
    teacher_hidden: jax.Array,
    weights: jax.Array,
) -> tuple[SoftSums, jax.Array]:
    """Compute a chunk's sums, and the gradient of its loss with respect to the student's logits / T, [n, V]."""
    s = _scaled_logits(temperature, student_hidden, *student)
    t = _scaled_logits(temperature, teacher_hidden, *teacher)
    log_s, log_t = jax.nn.log_softmax(s), jax.nn.log_softmax(t)
    p_t = jnp.exp(log_t)
    divergence = jnp.sum(p_t * (log_t - log_s), axis=-1)
    agree = (jnp.argmax(s, axis=-1) == jnp.argmax(t, axis=-1)).astype(jnp.float32)
    dlogits = (jnp.exp(log_s) - p_t) * weights[:, None]
    return SoftSums(jnp.sum(divergence * weights), jnp.sum(agree * weights)), dlogits


def _scaled_logits(temperature: float, hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    logits = jnp.einsum("nE,VE->nV", hidden, table, preferred_element_type=jnp.float32) / temperature + bias
    return constrain(logits, "act_batch", "act_vocab")


def _forward(
    temperature: float, student: _Part, teacher: _Part, weights: jax.Array
) -> tuple[SoftSums, tuple[jax.Array, jax.Array, jax.Array]]:
    hidden, table, bias = student
    student_table, teacher_table = _cast(student), _cast(teacher)

    def add(total: tuple, part: tuple[jax.Array, ...]) -> tuple[tuple, jax.Array]:
        sums, dscaled = _chunk(temperature, student_table, teacher_table, *part)
        dbias = column_sums(dscaled)
        dlogits = (dscaled / temperature).astype(hidden.dtype)
        dtable = over_rows(dlogits, part[0], 1, jnp.float32)
        return jax.tree.map(jnp.add, total, (sums, dtable, dbias)), by_rows(dlogits, student_table[0])

    zero = jnp.zeros((), jnp.float32)
    start = (SoftSums(zero, zero), jnp.zeros(table.shape, jnp.float32), jnp.zeros(bias.shape, jnp.float32))
    (sums, dtable, dbias), dhidden = jax.lax.scan(add, start, (hidden, teacher[0], weights))
    return sums, (dhidden, dtable.astype(table.dtype), dbias)


def _backward(temperature: float, gradients: tuple[jax.Array, jax.Array, jax.Array], cotangent: SoftSums) -> tuple:
    dstudent = jax.tree.map(lambda g: g * cotangent.loss.astype(g.dtype), gradients)
    return dstudent, None, None  # no gradient for the teacher and the weights


_divergence.defvjp(_forward, _backward)
