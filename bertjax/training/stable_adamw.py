"""StableAdamW (Wortsman et al. 2023): AdamW with a shorter step where the gradient outgrows its second moment."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class StableAdamState(NamedTuple):
    """First and second moments, float32, shaped like the parameters."""

    count: jax.Array  # int32 []: updates so far
    mu: Any
    nu: Any


def stable_adamw(
    beta1: float, beta2: float, eps: float, decay: optax.GradientTransformation
) -> optax.GradientTransformation:
    """(m / (sqrt(v) + eps) + decay) / max(1, rho), rho = sqrt(mean(g^2 / max(v, eps^2))) (Wortsman et al. 2023).

    beta (1 - beta^(t-1)) / (1 - beta^t) of update t corrects the bias. rho is of a parameter, of each layer where they
    are stacked, padding included; it takes the place of clipping (AnswerDotAI/ModernBERT, `src/optimizer.py`).
    """

    def init(params: optax.Params) -> StableAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return StableAdamState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(grads: optax.Updates, state: StableAdamState, params: Any) -> tuple[optax.Updates, StableAdamState]:
        count = state.count + 1
        b1, b2 = (_corrected(beta, count) for beta in (beta1, beta2))
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        plain = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        decayed, _ = decay.update(plain, decay.init(params), params)

        def shortened(path: tuple, step: jax.Array, g: jax.Array, v: jax.Array) -> jax.Array:
            within = tuple(range("layers" in [part.key for part in path], g.ndim))
            excess = jnp.mean(jnp.square(g) / jnp.maximum(v, eps**2), within, keepdims=True)
            return step / jnp.maximum(1.0, jnp.sqrt(excess))

        return jax.tree_util.tree_map_with_path(shortened, decayed, grads, nu), StableAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def _corrected(beta: float, count: jax.Array) -> jax.Array:
    t = count.astype(jnp.float32)
    return beta * (1 - beta ** (t - 1)) / (1 - beta**t)
