"""Soft targets: value and gradient equal the NumPy formula, with any chunks and temperature."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.model.soft_targets import Vocabulary, soft_cross_entropy

ROWS, VOCABULARY, PADDED = 37, 50, 64
SCALE = 2.5  # factor of the loss, to test cotangents other than 1


def network(seed: int, width: int) -> Vocabulary:
    """Draw a network's vocabulary head; its padding entries are not zero, and must not count."""
    draw = np.random.default_rng(seed)
    shapes = (ROWS, width), (PADDED, width), (PADDED,)
    return Vocabulary(*(draw.normal(0, 0.7, shape).astype(np.float32) for shape in shapes))


STUDENT, TEACHER = network(0, 24), network(1, 40)
WEIGHTS = np.random.default_rng(2).choice([0, 1, 1, 0.25], ROWS).astype(np.float32)


def real_logits(one: Vocabulary) -> np.ndarray:
    hidden, table, bias = (np.asarray(x, np.float64) for x in one)
    return hidden @ table[:VOCABULARY].T + bias[:VOCABULARY]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def formula(temperature: float) -> tuple[float, float, list[np.ndarray]]:
    """Compute (loss, agreement, gradients of the student's hidden, table and bias) in float64."""
    s, t = real_logits(STUDENT), real_logits(TEACHER)
    p_s, p_t = softmax(s / temperature), softmax(t / temperature)
    divergence = (p_t * (np.log(p_t) - np.log(p_s))).sum(axis=-1)
    dlogits = SCALE * temperature * WEIGHTS[:, None] * (p_s - p_t)
    dtable, dbias = np.zeros((PADDED, STUDENT.table.shape[1])), np.zeros(PADDED)
    dtable[:VOCABULARY] = dlogits.T @ STUDENT.hidden
    dbias[:VOCABULARY] = dlogits.sum(axis=0)
    gradients = [dlogits @ STUDENT.table[:VOCABULARY].astype(np.float64), dtable, dbias]
    agreement = ((s.argmax(axis=-1) == t.argmax(axis=-1)) * WEIGHTS).sum()
    return SCALE * temperature**2 * (divergence * WEIGHTS).sum(), agreement, gradients


def ours(temperature: float, chunk: int, student: Vocabulary = STUDENT, teacher: Vocabulary = TEACHER):
    def loss(student, teacher):
        sums = soft_cross_entropy(
            student, teacher, WEIGHTS, vocab_size=VOCABULARY, temperature=temperature, chunk=chunk
        )
        return SCALE * sums.loss, sums.agreement

    return jax.device_get(jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(student, teacher))


@pytest.mark.parametrize(("temperature", "chunk"), [(2.0, 1), (2.0, 16), (1.0, 36), (0.5, 1000), (8.0, 1000)])
def test_soft_targets_match_formula(temperature: float, chunk: int) -> None:
    (loss, agreement), (actual, teacher_gradients) = ours(temperature, chunk)
    expected_loss, expected_agreement, gradients = formula(temperature)
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert agreement == expected_agreement > 0
    for one, other in zip(actual, gradients, strict=True):
        assert np.linalg.norm(one - other) <= 1e-6 * np.linalg.norm(other)
    assert not any(np.any(x) for x in teacher_gradients), "the teacher must have no gradient"


def test_soft_targets_are_the_same_without_gradient() -> None:
    sums = soft_cross_entropy(STUDENT, TEACHER, WEIGHTS, vocab_size=VOCABULARY, temperature=2.0, chunk=16)
    (loss, agreement), _ = ours(2.0, 16)
    assert SCALE * float(sums.loss) == pytest.approx(float(loss), rel=1e-6) and float(sums.agreement) == agreement


def test_soft_targets_of_identical_networks_are_zero() -> None:
    (loss, agreement), (actual, _) = ours(2.0, 16, TEACHER, TEACHER)
    assert loss == 0 and agreement == WEIGHTS.sum() and not any(np.any(x) for x in actual)


@pytest.mark.parametrize("chunk", [4, 1000])
def test_soft_targets_hold_logits_of_one_chunk(chunk: int) -> None:
    """No array has all predictions and the whole vocabulary, unless a single chunk contains all predictions."""

    def loss(student, teacher):
        return soft_cross_entropy(student, teacher, WEIGHTS, vocab_size=VOCABULARY, temperature=2.0, chunk=chunk).loss

    text = jax.jit(jax.grad(loss)).lower(STUDENT, TEACHER).as_text()
    whole = [f"tensor<{rows}x{PADDED}xf32>" in text for rows in (ROWS, 40)]
    assert any(whole) == (chunk == 1000)
