"""The vocabulary loss: value and gradient equal the plain formula in float64, with any chunks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.heads import vocabulary_cross_entropy

ROWS, WIDTH, VOCABULARY, PADDED = 37, 24, 50, 64
SCALE = 2.5  # factor of the loss, to test cotangents other than 1


def draw_inputs(size=1.0):
    """(hidden, table, bias), (labels, weights): labels repeat, some weights are 0 and some are fractions."""
    draw = np.random.default_rng(0)
    hidden = draw.normal(0, size, (ROWS, WIDTH)).astype(np.float32)
    table = draw.normal(0, 0.5, (PADDED, WIDTH)).astype(np.float32)
    bias = draw.normal(0, 1, PADDED).astype(np.float32)
    weights = draw.choice([0, 1, 1, 0.25], ROWS).astype(np.float32)
    return (hidden, table, bias), (draw.integers(0, VOCABULARY, ROWS, dtype=np.int32), weights)


def plain(hidden, table, bias, labels, weights):
    """The formula over the real entries, for JAX to differentiate."""
    logits = hidden @ table[:VOCABULARY].T + bias[:VOCABULARY]
    nll = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return SCALE * jnp.sum(nll * weights)


def ours(floats, others, chunk):
    """Compute (loss, hits) and the gradients of hidden, table and bias."""

    def loss(hidden, table, bias):
        sums = vocabulary_cross_entropy(hidden, table, bias, *others, vocab_size=VOCABULARY, chunk=chunk)
        return SCALE * sums.loss, sums

    (value, sums), gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(*floats)
    return (float(value), float(sums.hits)), jax.device_get(gradients)


def exact(floats, others):
    """Compute loss and gradients of the formula in float64."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in floats]
        value, gradients = jax.jit(jax.value_and_grad(plain, argnums=(0, 1, 2)))(*wide, *map(jnp.asarray, others))
        return float(value), [np.asarray(g) for g in gradients]


def assert_near(actual, expected, tolerance):
    for one, other in zip(actual, expected, strict=True):
        assert np.linalg.norm(np.asarray(one, np.float64) - other) <= tolerance * np.linalg.norm(other)


@pytest.mark.parametrize("chunk", [1, 16, 36, 1000])
def test_loss_matches_formula_in_any_chunks(chunk):
    floats, others = draw_inputs()
    (value, _), gradients = ours(floats, others, chunk)
    expected_value, expected = exact(floats, others)
    assert value == pytest.approx(expected_value, rel=1e-6)
    assert_near(gradients, expected, 1e-6)


def test_loss_is_the_same_without_gradient():
    floats, others = draw_inputs()
    sums = vocabulary_cross_entropy(*floats, *others, vocab_size=VOCABULARY, chunk=16)
    (value, hits), _ = ours(floats, others, 16)
    assert float(sums.loss) * SCALE == pytest.approx(value, rel=1e-6)
    assert float(sums.hits) == hits


def test_padding_entries_have_zero_gradient():
    (hidden, table, bias), others = draw_inputs()
    # Even if padding entries had the largest logits.
    bias[VOCABULARY:] = 1e4
    (value, _), (_, dtable, dbias) = ours((hidden, table, bias), others, 16)
    assert np.isfinite(value)
    assert not dtable[VOCABULARY:].any() and not dbias[VOCABULARY:].any()
    assert dtable[:VOCABULARY].any(axis=1).all() and dbias[:VOCABULARY].all()


def test_unweighted_tokens_change_nothing():
    (hidden, table, bias), (labels, weights) = draw_inputs()
    other_hidden = np.where(weights[:, None] == 0, 100.0, hidden).astype(np.float32)
    other_labels = np.where(weights == 0, 0, labels).astype(np.int32)
    same = ours((hidden, table, bias), (labels, weights), 16)
    again = ours((other_hidden, table, bias), (other_labels, weights), 16)
    assert same[0] == again[0]
    assert not again[1][0][weights == 0].any()
    jax.tree.map(np.testing.assert_array_equal, same[1][1:], again[1][1:])


def test_hits_are_the_weight_of_correct_predictions():
    (hidden, table, bias), (labels, weights) = draw_inputs()
    best = (hidden.astype(np.float64) @ table[:VOCABULARY].T + bias[:VOCABULARY]).argmax(axis=1)
    labels[::3] = best[::3]
    (_, hits), _ = ours((hidden, table, bias), (labels, weights), 16)
    assert hits == weights[best == labels].sum() > 0


def test_large_logits_do_not_overflow():
    floats, others = draw_inputs(size=500.0)
    (value, _), gradients = ours(floats, others, 16)
    expected_value, expected = exact(floats, others)
    assert value == pytest.approx(expected_value, rel=1e-6)
    # Logits of thousands have an absolute error of 1e-3 in float32, which is the gradient's relative error.
    assert_near(gradients, expected, 1e-3)


def test_bfloat16_loss_is_as_exact_as_its_inputs():
    (hidden, table, bias), others = draw_inputs()
    half = hidden.astype(jnp.bfloat16)
    (value, _), gradients = ours((half, table, bias), others, 16)
    assert gradients[0].dtype == jnp.bfloat16 and gradients[1].dtype == gradients[2].dtype == np.float32
    expected_value, expected = exact((half.astype(np.float32), table, bias), others)
    assert value == pytest.approx(expected_value, rel=2e-3)
    assert_near(gradients, expected, 1e-2)
