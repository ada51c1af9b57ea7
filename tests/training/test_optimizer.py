"""The update rules are the reference's, written out a second time."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig
from bertjax.training.optimizer import decays, make_optimizer


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


def test_everything_may_decay() -> None:
    params = {"bias": jnp.ones(3), "kernel": jnp.ones(3)}
    zero = jax.tree.map(jnp.zeros_like, params)
    for decay_all, of_bias in ((False, 0.0), (True, 0.01)):
        optimizer = make_optimizer(OptimizerConfig(name="adamw", decay_all=decay_all))
        updates, _ = optimizer.update(zero, optimizer.init(params), params)
        np.testing.assert_allclose(updates["bias"], of_bias)
        np.testing.assert_allclose(updates["kernel"], 0.01)


def reference_lamb(param, grad, m, v, rate, number, *, corrected, excluded):
    """Algorithm 2 of arXiv 1904.00962, one matrix; `corrected` divides the moments by 1 - beta^t."""
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad**2
    m_hat, v_hat = (m / (1 - 0.9**number), v / (1 - 0.999**number)) if corrected else (m, v)
    update = m_hat / (np.sqrt(v_hat) + 1e-6)
    if not excluded:
        update = update + 0.01 * param
        of_param, of_update = np.linalg.norm(param), np.linalg.norm(update)
        if of_param > 0 and of_update > 0:
            update = update * of_param / of_update
    return param - rate * update, m, v


@pytest.mark.parametrize("name", ["lamb", "lamb_uncorrected"])
def test_lamb_is_the_papers_rule_for_each_layer_of_a_stack(name: str) -> None:
    rng = np.random.default_rng(1)
    word = np.concatenate([rng.normal(size=(6, 3)), np.zeros((2, 3))])  # two rows pad the vocabulary
    shapes = {"kernel": rng.normal(size=(4, 5, 2, 3)), "bias": rng.normal(size=(4, 2, 3))}
    params = {"embeddings": {"word": word}, "layers": {"dense": shapes}, "zero": {"kernel": np.zeros((3, 3))}}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig(name=name))
    state = optimizer.init(ours)
    parts = {("word", None): word[:6]} | {("zero", None): params["zero"]["kernel"]}
    parts |= {(key, layer): value[layer] for key, value in shapes.items() for layer in range(4)}
    expected = {key: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for key, value in parts.items()}
    for number in range(1, 31):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        grads["embeddings"]["word"][6:] = 0
        rate = 1e-2 / number
        updates, state = optimizer.update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
        ours = jax.tree.map(lambda p, u, rate=rate: p - rate * u, ours, updates)
        dense = grads["layers"]["dense"]
        found = {("word", None): grads["embeddings"]["word"][:6], ("zero", None): grads["zero"]["kernel"]}
        found |= {(key, layer): dense[key][layer] for key in dense for layer in range(4)}
        for key, (param, m, v) in expected.items():
            corrected, excluded = name == "lamb", key[0] == "bias"
            expected[key] = reference_lamb(
                param, found[key], m, v, rate, number, corrected=corrected, excluded=excluded
            )
    np.testing.assert_allclose(ours["embeddings"]["word"][:6], expected["word", None][0], rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(ours["embeddings"]["word"][6:], 0)
    np.testing.assert_allclose(ours["zero"]["kernel"], expected["zero", None][0], rtol=2e-5, atol=1e-6)
    for key, value in ours["layers"]["dense"].items():
        for layer in range(4):
            np.testing.assert_allclose(value[layer], expected[key, layer][0], rtol=2e-5, atol=1e-6)


def test_stable_adamw_is_the_rule_for_each_layer_of_a_stack() -> None:
    """Over gradients that grow suddenly, so that steps are shortened; written out in float64."""
    rng = np.random.default_rng(2)
    layers = {"kernel": rng.normal(size=(3, 4, 5)), "bias": rng.normal(size=(3, 5))}
    params = {"layers": layers, "word": np.ones((6, 2))}
    parts = {(name, layer): x[layer] for name, x in params["layers"].items() for layer in range(3)}
    parts["word", None] = params["word"]
    expected = {key: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for key, value in parts.items()}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig(name="stable_adamw", beta1=0.9, beta2=0.98, weight_decay=0.1))
    state, shortened = optimizer.init(ours), 0
    for t in range(1, 21):
        grads = jax.tree.map(lambda x, t=t: rng.normal(size=x.shape) * (30.0 if t % 7 == 0 else 1.0), params)
        updates, state = optimizer.update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
        ours = jax.tree.map(lambda p, u: p - 0.01 * u, ours, updates)
        for (name, layer), (p, m, v) in expected.items():
            g = grads["word"] if layer is None else grads["layers"][name][layer]
            b1, b2 = (beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (0.9, 0.98))
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            rho = np.sqrt(np.mean(g**2 / np.maximum(v, 1e-12)))
            shortened += rho > 1.5
            rate, decay = 0.01 / max(1.0, rho), 0.0 if name == "bias" else 0.1
            expected[name, layer] = p * (1 - rate * decay) - rate * m / (np.sqrt(v) + 1e-6), m, v
    assert shortened >= 10
    np.testing.assert_allclose(ours["word"], expected["word", None][0], rtol=2e-5, atol=1e-6)
    for name, value in ours["layers"].items():
        for layer in range(3):
            np.testing.assert_allclose(value[layer], expected[name, layer][0], rtol=2e-5, atol=1e-6)


def test_an_unknown_rule_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"optimizer.name='sgd'.*bert_adamw, adamw, lamb"):
        make_optimizer(OptimizerConfig(name="sgd"))
