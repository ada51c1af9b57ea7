"""Update rules and learning-rate schedules, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config import OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


class BertAdamState(NamedTuple):
    """First and second moments, float32, shaped like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction (google-research/bert optimization.py)."""

    def init(params: optax.Params) -> BertAdamState:
        return BertAdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(grads: optax.Updates, state: BertAdamState, params: Any = None) -> tuple[optax.Updates, BertAdamState]:
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, grads)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def decays(params: optax.Params) -> Any:
    """Which parameters weight decay touches: all but biases and LayerNorm scales (optimization.py)."""
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in ("bias", "scale"), params)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The update direction, before the learning rate: the step multiplies by the schedule at the state's own step.

    Clipping is the step's too, which needs the gradient norm anyway.
    """
    rules = {
        "bert_adamw": lambda: scale_by_bert_adam(config.beta1, config.beta2, config.eps),
        "adamw": lambda: optax.scale_by_adam(config.beta1, config.beta2, config.eps),
    }
    if config.name not in rules:
        raise ValueError(f"optimizer.name={config.name!r} is unknown; choose from {', '.join(rules)}")
    return optax.chain(rules[config.name](), optax.add_decayed_weights(config.weight_decay, mask=decays))


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Learning rate by step: linear warm-up, then linear decay to zero at total_steps.

    As in optimization.py the decay runs underneath the warm-up, so the rate is 0 at step 0 and falls from
    `learning_rate` to `learning_rate * (1 - warmup / total)` where the warm-up ends.
    """

    def schedule(step: jax.Array) -> jax.Array:
        step = step.astype(jnp.float32)
        decayed = config.learning_rate * (jnp.maximum(total_steps - step, 0.0) / total_steps)
        warming = config.learning_rate * step / max(config.warmup_steps, 1)
        return jnp.where(step < config.warmup_steps, warming, decayed)

    return schedule
