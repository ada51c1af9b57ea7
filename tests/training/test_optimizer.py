"""The update rule and the schedule are google-research/bert's, written out a second time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig
from bertjax.training.optimizer import decays, make_optimizer, make_schedule


def reference_update(param, grad, m, v, rate, *, decay):
    """optimization.py's AdamWeightDecayOptimizer, one parameter."""
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad**2
    update = m / (np.sqrt(v) + 1e-6)
    if decay:
        update = update + 0.01 * param
    return param - rate * update, m, v


def test_bert_adamw_is_the_reference_rule_over_fifty_updates() -> None:
    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(5, 3)), "bias": rng.normal(size=3), "scale": rng.normal(size=3)}
    expected = {name: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for name, value in params.items()}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig())
    state = optimizer.init(ours)
    for number in range(50):
        grads = {name: rng.normal(size=value.shape) for name, value in params.items()}
        rate = 1e-2 / (number + 1)
        updates, state = optimizer.update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
        ours = jax.tree.map(lambda p, u, rate=rate: p - rate * u, ours, updates)
        for name, (param, m, v) in expected.items():
            expected[name] = reference_update(param, grads[name], m, v, rate, decay=name == "kernel")
    for name, (param, _, _) in expected.items():
        np.testing.assert_allclose(ours[name], param, rtol=1e-5, atol=1e-6)


def test_adamw_is_optax_adamw() -> None:
    params = {"kernel": jnp.linspace(-1.0, 1.0, 6)}
    theirs = optax.adamw(0.1, eps=1e-6, weight_decay=0.01)
    optimizer, state, other = make_optimizer(OptimizerConfig(name="adamw")), None, theirs.init(params)
    state = optimizer.init(params)
    for number in range(5):
        grads = {"kernel": jnp.sin(jnp.arange(6.0) + number)}
        ours, state = optimizer.update(grads, state, params)
        updates, other = theirs.update(grads, other, params)
        np.testing.assert_allclose(-0.1 * ours["kernel"], updates["kernel"], rtol=1e-6)


def test_embeddings_decay_and_vectors_do_not() -> None:
    tree = {"word": 1.0, "norm": {"scale": 1.0, "bias": 1.0}, "dense": {"kernel": 1.0, "bias": 1.0}}
    assert decays(tree) == {
        "word": True,
        "norm": {"scale": False, "bias": False},
        "dense": {"kernel": True, "bias": False},
    }


@pytest.mark.parametrize("step", [0, 1, 99, 100, 101, 500, 999, 1000, 1500])
def test_schedule_is_the_references(step: int) -> None:
    rate, warmup, total = 1e-4, 100, 1000
    decayed = rate * (1 - min(step, total) / total)  # tf.train.polynomial_decay, power 1, end 0, unshifted
    expected = rate * step / warmup if step < warmup else decayed
    schedule = make_schedule(OptimizerConfig(learning_rate=rate, warmup_steps=warmup), total)
    assert float(schedule(jnp.int32(step))) == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_an_unknown_rule_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"optimizer.name='sgd'.*bert_adamw, adamw"):
        make_optimizer(OptimizerConfig(name="sgd"))
