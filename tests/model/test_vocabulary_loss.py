"""The vocabulary loss: value and gradient equal to the plain formula's in float64, in any chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.heads import vocabulary_cross_entropy

ROWS, WIDTH, VOCABULARY, PADDED = 37, 24, 50, 64
SCALE = 2.5  # of the loss, as something above it in the graph would scale it


def drawn(seed=0, size=1.0):
    """(hidden, table, bias), (labels, weights): labels repeat, some weights are 0 and some are no whole number."""
    draw = np.random.default_rng(seed)
    hidden = draw.normal(0, size, (ROWS, WIDTH)).astype(np.float32)
    table = draw.normal(0, 0.5, (PADDED, WIDTH)).astype(np.float32)
    bias = draw.normal(0, 1, PADDED).astype(np.float32)
    weights = draw.choice([0, 1, 1, 0.25], ROWS).astype(np.float32)
    return (hidden, table, bias), (draw.integers(0, VOCABULARY, ROWS, dtype=np.int32), weights)


def plain(hidden, table, bias, labels, weights):
    """The formula, over the real entries only, for jax to differentiate."""
    logits = hidden @ table[:VOCABULARY].T + bias[:VOCABULARY]
    nll = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return SCALE * jnp.sum(nll * weights)


def ours(floats, others, chunk):
    """(loss, hits), gradients by hidden, table and bias."""

    def loss(hidden, table, bias):
        sums = vocabulary_cross_entropy(hidden, table, bias, *others, vocab_size=VOCABULARY, chunk=chunk)
        return SCALE * sums.loss, sums

    (value, sums), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*floats)
    return (float(value), float(sums.hits)), jax.device_get(gradients)


def exact(floats, others):
    """Loss and gradients in float64 by plain differentiation."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in floats]
        value, gradients = jax.jit(jax.value_and_grad(plain, argnums=(0, 1, 2)))(*wide, *map(jnp.asarray, others))
        return float(value), [np.asarray(g) for g in gradients]


def assert_near(found, wanted, tolerance):
    for one, other in zip(found, wanted, strict=True):
        assert np.linalg.norm(np.asarray(one, np.float64) - other) <= tolerance * np.linalg.norm(other)


@pytest.mark.parametrize("chunk", [1, 16, 36, 1000])
def test_equal_to_the_plain_formula_in_any_chunks(chunk):
    floats, others = drawn()
    (value, _), gradients = ours(floats, others, chunk)
    wanted_value, wanted = exact(floats, others)
    assert value == pytest.approx(wanted_value, rel=1e-6)
    assert_near(gradients, wanted, 1e-6)


def test_the_value_is_the_same_without_a_gradient():
    floats, others = drawn()
    sums = vocabulary_cross_entropy(*floats, *others, vocab_size=VOCABULARY, chunk=16)
    (value, hits), _ = ours(floats, others, 16)
    assert float(sums.loss) * SCALE == pytest.approx(value, rel=1e-6)
    assert float(sums.hits) == hits


def test_padding_entries_have_a_gradient_of_exactly_zero():
    (hidden, table, bias), others = drawn()
    # Even where a padding entry would win every prediction.
    bias[VOCABULARY:] = 1e4
    (value, _), (_, by_table, by_bias) = ours((hidden, table, bias), others, 16)
    assert np.isfinite(value)
    assert not by_table[VOCABULARY:].any() and not by_bias[VOCABULARY:].any()
    assert by_table[:VOCABULARY].any(axis=1).all() and by_bias[:VOCABULARY].all()


def test_unweighted_tokens_change_nothing():
    (hidden, table, bias), (labels, weights) = drawn()
    other_hidden = np.where(weights[:, None] == 0, 100.0, hidden).astype(np.float32)
    other_labels = np.where(weights == 0, 0, labels).astype(np.int32)
    same = ours((hidden, table, bias), (labels, weights), 16)
    again = ours((other_hidden, table, bias), (other_labels, weights), 16)
    assert same[0] == again[0]
    assert not again[1][0][weights == 0].any()
    jax.tree.map(np.testing.assert_array_equal, same[1][1:], again[1][1:])


def test_hits_are_the_weight_of_what_is_predicted_right():
    (hidden, table, bias), (labels, weights) = drawn()
    best = (hidden.astype(np.float64) @ table[:VOCABULARY].T + bias[:VOCABULARY]).argmax(axis=1)
    labels[::3] = best[::3]
    (_, hits), _ = ours((hidden, table, bias), (labels, weights), 16)
    assert hits == weights[best == labels].sum() > 0


def test_large_logits_overflow_nothing():
    floats, others = drawn(size=500.0)
    (value, _), gradients = ours(floats, others, 16)
    wanted_value, wanted = exact(floats, others)
    assert value == pytest.approx(wanted_value, rel=1e-6)
    # Logits of thousands have an absolute error of 1e-3 in float32, which is the gradient's relative error.
    assert_near(gradients, wanted, 1e-3)


def test_half_precision_loses_no_more_than_its_digits():
    (hidden, table, bias), others = drawn()
    half = hidden.astype(jnp.bfloat16)
    (value, _), gradients = ours((half, table, bias), others, 16)
    assert gradients[0].dtype == jnp.bfloat16 and gradients[1].dtype == gradients[2].dtype == np.float32
    wanted_value, wanted = exact((half.astype(np.float32), table, bias), others)
    assert value == pytest.approx(wanted_value, rel=2e-3)
    assert_near(gradients, wanted, 1e-2)
