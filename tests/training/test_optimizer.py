"""The update rules against references that are written out a second time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertjax.config import OptimizerConfig
from bertjax.training.optimizer import clip_factors, decays, follow, make_optimizer, moving_average


def reference_update(param, grad, m, v, rate, *, decay):
    """optimization.py's AdamWeightDecayOptimizer for one parameter."""
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad**2
    update = m / (np.sqrt(v) + 1e-6)
    if decay:
        update = update + 0.01 * param
    return param - rate * update, m, v


def test_bert_adamw_equals_the_reference_over_fifty_updates() -> None:
    rng = np.random.default_rng(0)
    params = {"kernel": rng.normal(size=(5, 3)), "bias": rng.normal(size=3), "scale": rng.normal(size=3)}
    expected = {name: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for name, value in params.items()}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig())
    state, update = optimizer.init(ours), jax.jit(optimizer.update)
    for number in range(50):
        grads = {name: rng.normal(size=value.shape) for name, value in params.items()}
        rate = 1e-2 / (number + 1)
        updates, state = update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
        ours = jax.tree.map(lambda p, u, rate=rate: p - rate * u, ours, updates)
        for name, (param, m, v) in expected.items():
            expected[name] = reference_update(param, grads[name], m, v, rate, decay=name == "kernel")
    for name, (param, _, _) in expected.items():
        np.testing.assert_allclose(ours[name], param, rtol=1e-5, atol=1e-6)


def test_adamw_equals_optax() -> None:
    params = {"kernel": jnp.linspace(-1.0, 1.0, 6)}
    theirs = optax.adamw(0.1, eps=1e-6, weight_decay=0.01)
    optimizer, state, other = make_optimizer(OptimizerConfig(name="adamw")), None, theirs.init(params)
    state = optimizer.init(params)
    for number in range(5):
        grads = {"kernel": jnp.sin(jnp.arange(6.0) + number)}
        ours, state = optimizer.update(grads, state, params)
        updates, other = theirs.update(grads, other, params)
        np.testing.assert_allclose(-0.1 * ours["kernel"], updates["kernel"], rtol=1e-6)


def test_weight_decay_skips_biases_and_scales() -> None:
    tree = {"word": 1.0, "norm": {"scale": 1.0, "bias": 1.0}, "dense": {"kernel": 1.0, "bias": 1.0}}
    assert decays(tree) == {
        "word": True,
        "norm": {"scale": False, "bias": False},
        "dense": {"kernel": True, "bias": False},
    }


def test_decay_all_decays_biases() -> None:
    params = {"bias": jnp.ones(3), "kernel": jnp.ones(3)}
    zero = jax.tree.map(jnp.zeros_like, params)
    for decay_all, bias_decay in ((False, 0.0), (True, 0.01)):
        optimizer = make_optimizer(OptimizerConfig(name="adamw", decay_all=decay_all))
        updates, _ = optimizer.update(zero, optimizer.init(params), params)
        np.testing.assert_allclose(updates["bias"], bias_decay)
        np.testing.assert_allclose(updates["kernel"], 0.01)


def reference_lamb(param, grad, m, v, rate, number, *, corrected, excluded):
    """Algorithm 2 of arXiv 1904.00962 for one matrix; `corrected` divides the moments by 1 - beta^t."""
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad**2
    m_hat, v_hat = (m / (1 - 0.9**number), v / (1 - 0.999**number)) if corrected else (m, v)
    update = m_hat / (np.sqrt(v_hat) + 1e-6)
    if not excluded:
        update = update + 0.01 * param
        param_norm, update_norm = np.linalg.norm(param), np.linalg.norm(update)
        if param_norm > 0 and update_norm > 0:
            update = update * param_norm / update_norm
    return param - rate * update, m, v


@pytest.mark.parametrize("name", ["lamb", "lamb_uncorrected"])
def test_lamb_equals_the_paper_for_each_stacked_layer(name: str) -> None:
    rng = np.random.default_rng(1)
    word = np.concatenate([rng.normal(size=(6, 3)), np.zeros((2, 3))])  # two rows pad the vocabulary
    shapes = {"kernel": rng.normal(size=(4, 5, 2, 3)), "bias": rng.normal(size=(4, 2, 3))}
    params = {"embeddings": {"word": word}, "layers": {"dense": shapes}, "zero": {"kernel": np.zeros((3, 3))}}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig(name=name))
    state, update = optimizer.init(ours), jax.jit(optimizer.update)
    parts = {("word", None): word[:6]} | {("zero", None): params["zero"]["kernel"]}
    parts |= {(key, layer): value[layer] for key, value in shapes.items() for layer in range(4)}
    expected = {key: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for key, value in parts.items()}
    for number in range(1, 31):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        grads["embeddings"]["word"][6:] = 0
        rate = 1e-2 / number
        updates, state = update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
        ours = jax.tree.map(lambda p, u, rate=rate: p - rate * u, ours, updates)
        dense = grads["layers"]["dense"]
        part_grads = {("word", None): grads["embeddings"]["word"][:6], ("zero", None): grads["zero"]["kernel"]}
        part_grads |= {(key, layer): dense[key][layer] for key in dense for layer in range(4)}
        for key, (param, m, v) in expected.items():
            corrected, excluded = name == "lamb", key[0] == "bias"
            expected[key] = reference_lamb(
                param, part_grads[key], m, v, rate, number, corrected=corrected, excluded=excluded
            )
    np.testing.assert_allclose(ours["embeddings"]["word"][:6], expected["word", None][0], rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(ours["embeddings"]["word"][6:], 0)
    np.testing.assert_allclose(ours["zero"]["kernel"], expected["zero", None][0], rtol=2e-5, atol=1e-6)
    for key, value in ours["layers"]["dense"].items():
        for layer in range(4):
            np.testing.assert_allclose(value[layer], expected[key, layer][0], rtol=2e-5, atol=1e-6)


def test_stable_adamw_equals_the_rule_for_each_stacked_layer() -> None:
    """Written out in float64, with gradients that grow suddenly, so that steps are shortened."""
    rng = np.random.default_rng(2)
    layers = {"kernel": rng.normal(size=(3, 4, 5)), "bias": rng.normal(size=(3, 5))}
    params = {"layers": layers, "word": np.ones((6, 2))}
    parts = {(name, layer): x[layer] for name, x in params["layers"].items() for layer in range(3)}
    parts["word", None] = params["word"]
    expected = {key: (value.copy(), np.zeros_like(value), np.zeros_like(value)) for key, value in parts.items()}
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    optimizer = make_optimizer(OptimizerConfig(name="stable_adamw", beta1=0.9, beta2=0.98, weight_decay=0.1))
    state, update, shortened = optimizer.init(ours), jax.jit(optimizer.update), 0
    for t in range(1, 21):
        grads = jax.tree.map(lambda x, t=t: rng.normal(size=x.shape) * (30.0 if t % 7 == 0 else 1.0), params)
        updates, state = update(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads), state, ours)
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


def test_unknown_optimizer_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match=r"optimizer.name='sgd'.*bert_adamw, adamw, lamb"):
        make_optimizer(OptimizerConfig(name="sgd"))


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """Five iterations of the quintic of Jordan 2024, on the wide side."""
    x, is_transposed = (x.T, True) if x.shape[0] > x.shape[1] else (x, False)
    x = x / (np.linalg.norm(x) + 1e-8)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if is_transposed else x


def test_muon_equals_the_rule_for_each_stacked_matrix() -> None:
    """In float64, over four updates; parameters other than the layers' matrices get adamw's updates."""
    rng = np.random.default_rng(3)
    shapes = {
        "attention": {"query": {"kernel": (2, 6, 2, 3)}, "output": {"kernel": (2, 2, 3, 6)}},
        "mlp": {"intermediate": {"kernel": (2, 6, 2, 5)}, "output": {"kernel": (2, 5, 6), "bias": (2, 6)}},
    }
    shapes = {"encoder": {"layers": shapes}, "head": {"kernel": (6, 4)}}
    params = jax.tree.map(lambda shape: rng.normal(size=shape), shapes, is_leaf=lambda x: isinstance(x, tuple))
    ours = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    config = OptimizerConfig(name="muon", weight_decay=0.1, eps=1e-8)
    optimizer, adamw = make_optimizer(config), make_optimizer(OptimizerConfig(name="adamw", weight_decay=0.1, eps=1e-8))
    state, other = optimizer.init(ours), adamw.init(ours)
    step, adamw_step = jax.jit(optimizer.update), jax.jit(adamw.update)
    layers = params["encoder"]["layers"]
    momenta = jax.tree.map(np.zeros_like, params)

    def update(x: np.ndarray, m: np.ndarray, g: np.ndarray, t: int, inputs: int) -> np.ndarray:
        """The update of one matrix, whose first `inputs` dims are its inputs."""
        m = 0.95 * m / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
        flat = m.reshape(np.prod(m.shape[:inputs]), -1)
        return (newton_schulz(flat) * 0.2 * np.sqrt(max(flat.shape))).reshape(x.shape) + 0.1 * x

    for t in range(1, 5):
        grads = jax.tree.map(lambda x: rng.normal(size=x.shape), params)
        exact = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads)
        updates, state = step(exact, state, ours)
        adamw_updates, other = adamw_step(exact, other, ours)
        momenta = jax.tree.map(lambda m, g: 0.95 * m + 0.05 * g, momenta, grads)
        layer_updates, m, g = (tree["encoder"]["layers"] for tree in (updates, momenta, grads))
        for (first, second), inputs in (
            (("attention", "query"), 1),
            (("attention", "output"), 2),
            (("mlp", "output"), 1),
        ):
            x, m_x, g_x, u = (tree[first][second]["kernel"] for tree in (layers, m, g, layer_updates))
            for layer in range(2):
                expected = update(x[layer], m_x[layer], g_x[layer], t, inputs)
                np.testing.assert_allclose(u[layer], expected, rtol=1e-4, atol=1e-4)
        x, m_x, g_x, u = (tree["mlp"]["intermediate"]["kernel"] for tree in (layers, m, g, layer_updates))
        for layer, half in np.ndindex(2, 2):
            expected = update(x[layer, :, half], m_x[layer, :, half], g_x[layer, :, half], t, 1)
            np.testing.assert_allclose(u[layer, :, half], expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(updates["head"]["kernel"], adamw_updates["head"]["kernel"], rtol=1e-5)
        ours_bias, theirs = (tree["encoder"]["layers"]["mlp"]["output"]["bias"] for tree in (updates, adamw_updates))
        np.testing.assert_allclose(ours_bias, theirs, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.999, 0.99999])
def test_moving_average_of_one_value_is_the_value(decay: float) -> None:
    rule = make_optimizer(OptimizerConfig(average_decay=decay))
    params = {"w": jnp.ones(3)}
    state = rule.init(params)
    for count in range(1, 5):
        state: Any = follow(state, params)
        np.testing.assert_allclose(moving_average(state.average, decay, count)["w"], params["w"], rtol=1e-6)


def test_moving_average_works_with_further_transformations() -> None:
    params = {"w": jnp.ones(3)}
    rule = make_optimizer(OptimizerConfig(average_decay=0.9), optax.scale(0.5))
    state: Any = follow(rule.init(params), params)
    assert int(state.count) == 1


def test_moving_average_equals_optax_ema() -> None:
    params = {"kernel": jnp.linspace(-1.0, 1.0, 6)}
    optimizer, plain = (make_optimizer(OptimizerConfig(average_decay=decay)) for decay in (0.9, 0.0))
    theirs = optax.ema(0.9)
    state, without, their_state = optimizer.init(params), plain.init(params), theirs.init(params)
    for number in range(7):
        grads = {"kernel": jnp.sin(jnp.arange(6.0) + number)}
        updates, state = optimizer.update(grads, state, params)
        unchanged, without = plain.update(grads, without, params)
        np.testing.assert_array_equal(updates["kernel"], unchanged["kernel"])
        params = jax.tree.map(lambda p, u: p - 0.1 * u, params, updates)
        state = follow(state, params)
        expected, their_state = theirs.update(params, their_state)
        actual = moving_average(state.average, 0.9, int(state.count))
        np.testing.assert_allclose(actual["kernel"], expected["kernel"], rtol=1e-5)
    assert follow(without, params) is without


@pytest.mark.parametrize(("clip_norm", "factor"), [(1.0, 0.2), (5.0, 1.0), (10.0, 1.0), (0.0, 1.0)])
def test_clip_factors_only_scale_down(clip_norm: float, factor: float) -> None:
    """Like tf.clip_by_global_norm."""
    grads = {"encoder": {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}}
    factors = clip_factors(grads, optax.tree.norm(grads), clip_norm)
    assert [float(one) for one in jax.tree.leaves(factors)] == pytest.approx([factor, factor])
