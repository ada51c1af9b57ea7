"""Schedules against their references at every step."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import OptimizerConfig
from bertjax.training.schedules import make_schedule

RATE, WARMUP, TOTAL = 1e-4, 100, 1000
STEPS = np.arange(0, TOTAL + 50)


def rates(**settings: object) -> np.ndarray:
    schedule = make_schedule(OptimizerConfig(learning_rate=RATE, warmup_steps=WARMUP, **settings), TOTAL)
    return np.array(schedule(jnp.asarray(STEPS)))


def polynomial_decay(step: int, power: float) -> float:
    """tf.train.polynomial_decay to 0 at TOTAL, as called by optimization.py: with the unshifted step."""
    return RATE * (1 - min(step, TOTAL) / TOTAL) ** power


def test_linear_equals_google_research_bert() -> None:
    expected = [RATE * step / WARMUP if step < WARMUP else polynomial_decay(step, 1.0) for step in STEPS]
    actual = rates()
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-12)
    assert actual[0] == 0
    assert actual[WARMUP] == pytest.approx(RATE * (1 - WARMUP / TOTAL))
    assert (actual[TOTAL:] == 0).all()


def test_linear_after_warmup_equals_transformers() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, TOTAL)
    expected = [RATE * schedule.lr_lambdas[0](int(step)) for step in STEPS]
    actual = rates(schedule="linear_after_warmup")
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-12)
    assert actual[WARMUP] == pytest.approx(RATE)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_polynomial_accepts_any_power(power: float) -> None:
    expected = [RATE * step / WARMUP if step < WARMUP else polynomial_decay(step, power) for step in STEPS]
    np.testing.assert_allclose(rates(schedule="polynomial", decay_power=power), expected, rtol=1e-5, atol=1e-12)


def test_cosine_joins_the_warm_up_at_its_peak() -> None:
    def expected(step: int) -> float:
        if step < WARMUP:
            return RATE * step / WARMUP
        return RATE * 0.5 * (1 + math.cos(math.pi * min((step - WARMUP) / (TOTAL - WARMUP), 1)))

    np.testing.assert_allclose(rates(schedule="cosine"), [expected(step) for step in STEPS], rtol=1e-5, atol=1e-11)


def test_warmup_stable_decay_falls_only_in_the_last_steps() -> None:
    actual = rates(schedule="warmup_stable_decay", decay_steps=200)
    np.testing.assert_allclose(actual[WARMUP : TOTAL - 200 + 1], RATE, rtol=1e-6)
    np.testing.assert_allclose(actual[TOTAL - 200 : TOTAL + 1], np.linspace(RATE, 0, 201), rtol=1e-5, atol=1e-11)
    assert (actual[TOTAL:] == 0).all()


def test_warmup_stable_decay_may_fall_by_a_root() -> None:
    actual = rates(schedule="warmup_stable_decay", decay_steps=200, decay_shape="1-sqrt")
    np.testing.assert_allclose(actual[WARMUP : TOTAL - 200 + 1], RATE, rtol=1e-6)
    falling = RATE * (1 - np.sqrt(np.arange(201) / 200))
    np.testing.assert_allclose(actual[TOTAL - 200 : TOTAL + 1], falling, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "linear_after_warmup", "cosine", "warmup_stable_decay"])
def test_every_schedule_may_end_above_0(schedule: str) -> None:
    to_zero, actual = rates(schedule=schedule), rates(schedule=schedule, final_share=0.1)
    np.testing.assert_allclose(actual[:WARMUP], to_zero[:WARMUP], rtol=1e-6)
    np.testing.assert_allclose(actual[WARMUP:], 0.1 * RATE + 0.9 * to_zero[WARMUP:], rtol=1e-5)


def test_schedule_without_warmup_begins_at_the_peak() -> None:
    schedule = make_schedule(OptimizerConfig(learning_rate=RATE, warmup_steps=0), TOTAL)
    assert float(schedule(jnp.int32(0))) == pytest.approx(RATE)


def test_unknown_schedule_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"optimizer.schedule='step'.*linear, linear_after_warmup, polynomial, cosine"):
        make_schedule(OptimizerConfig(schedule="step"), 10)
