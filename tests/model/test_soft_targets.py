"""Soft targets: value and gradient equal to the formula's in NumPy, in any chunks and at any temperature."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bertjax.model.soft_targets import Vocabulary, soft_cross_entropy

ROWS, VOCABULARY, PADDED = 37, 50, 64
SCALE = 2.5  # of the loss, as something above it in the graph would scale it


def network(seed: int, width: int) -> Vocabulary:
    """Rows of the table and the bias beyond the vocabulary are not zero: they must not count."""
    draw = np.random.default_rng(seed)
    shapes = (ROWS, width), (PADDED, width), (PADDED,)
    return Vocabulary(*(draw.normal(0, 0.7, shape).astype(np.float32) for shape in shapes))


STUDENT, TEACHER = network(0, 24), network(1, 40)
WEIGHTS = np.random.default_rng(2).choice([0, 1, 1, 0.25], ROWS).astype(np.float32)


def logits_of(one: Vocabulary) -> np.ndarray:
    hidden, table, bias = (np.asarray(x, np.float64) for x in one)
    return hidden @ table[:VOCABULARY].T + bias[:VOCABULARY]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def by_formula(temperature: float) -> tuple[float, float, list[np.ndarray]]:
    """(loss, agreement, gradients by hidden, table and bias of the student), in float64."""
    s, t = logits_of(STUDENT), logits_of(TEACHER)
    p_s, p_t = softmax(s / temperature), softmax(t / temperature)
    divergence = (p_t * (np.log(p_t) - np.log(p_s))).sum(axis=-1)
    by_logits = SCALE * temperature * WEIGHTS[:, None] * (p_s - p_t)
    by_table, by_bias = np.zeros((PADDED, STUDENT.table.shape[1])), np.zeros(PADDED)
    by_table[:VOCABULARY] = by_logits.T @ STUDENT.hidden
    by_bias[:VOCABULARY] = by_logits.sum(axis=0)
    gradients = [by_logits @ STUDENT.table[:VOCABULARY].astype(np.float64), by_table, by_bias]
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
def test_value_and_gradient_are_the_formulas(temperature: float, chunk: int) -> None:
    (loss, agreement), (found, of_teacher) = ours(temperature, chunk)
    wanted, agreed, gradients = by_formula(temperature)
    assert loss == pytest.approx(wanted, rel=1e-6)
    assert agreement == agreed > 0
    for one, other in zip(found, gradients, strict=True):
        assert np.linalg.norm(one - other) <= 1e-6 * np.linalg.norm(other)
    assert not any(np.any(x) for x in of_teacher), "the teacher learns nothing"


def test_the_value_is_the_same_without_a_gradient() -> None:
    sums = soft_cross_entropy(STUDENT, TEACHER, WEIGHTS, vocab_size=VOCABULARY, temperature=2.0, chunk=16)
    (loss, agreement), _ = ours(2.0, 16)
    assert SCALE * float(sums.loss) == pytest.approx(float(loss), rel=1e-6) and float(sums.agreement) == agreement


def test_a_student_that_is_its_teacher_has_nothing_to_learn() -> None:
    (loss, agreement), (found, _) = ours(2.0, 16, TEACHER, TEACHER)
    assert loss == 0 and agreement == WEIGHTS.sum() and not any(np.any(x) for x in found)


@pytest.mark.parametrize("chunk", [4, 1000])
def test_logits_of_a_chunk_alone_exist(chunk: int) -> None:
    """No array of the program has all predictions and the whole vocabulary, but where one chunk is all of them."""

    def loss(student, teacher):
        return soft_cross_entropy(student, teacher, WEIGHTS, vocab_size=VOCABULARY, temperature=2.0, chunk=chunk).loss

    text = jax.jit(jax.grad(loss)).lower(STUDENT, TEACHER).as_text()
    whole = [f"tensor<{rows}x{PADDED}xf32>" in text for rows in (ROWS, 40)]
    assert any(whole) == (chunk == 1000)
