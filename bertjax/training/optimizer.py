"""Update rules by name, and BERT's Adam."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.config import OptimizerConfig
from bertjax.training.update_rules import decays, scale_by_trust_ratio, stable_adamw


class BertAdamState(NamedTuple):
    """First and second moments, float32, shaped like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """m / (sqrt(v) + eps) without bias correction (google-research/bert optimization.py)."""

    def init(params: optax.Params) -> BertAdamState:
        return BertAdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(updates: optax.Updates, state: Any, params: Any = None) -> tuple[optax.Updates, BertAdamState]:
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.nu, updates)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Make the update rule that `config.name` names.

    bert_adamw        Adam without bias correction, decoupled decay (google-research/bert; the paper's)
    adamw             Adam with bias correction, decoupled decay
    lamb              adamw's update scaled by the trust ratio (MLPerf's and NVIDIA's LAMB)
    lamb_uncorrected  bert_adamw's update scaled by the trust ratio (google-research/albert's LAMB)
    stable_adamw      adamw's update, shortened where the gradient outgrows its second moment (ModernBERT)

    Biases and LayerNorm parameters do not decay unless `decay_all` is set (fairseq's RoBERTa). The train step
    multiplies by the learning rate, and clips: it has the gradient norm. Raises ValueError for an unknown name.
    """
    plain = scale_by_bert_adam(config.beta1, config.beta2, config.eps)
    corrected = optax.scale_by_adam(config.beta1, config.beta2, config.eps)
    decay = optax.add_decayed_weights(config.weight_decay, mask=None if config.decay_all else decays)
    rules = {
        "bert_adamw": (plain, decay),
        "adamw": (corrected, decay),
        "lamb": (corrected, decay, scale_by_trust_ratio()),
        "lamb_uncorrected": (plain, decay, scale_by_trust_ratio()),
        "stable_adamw": (stable_adamw(config.beta1, config.beta2, config.eps, decay),),
    }
    if config.name not in rules:
        raise ValueError(f"optimizer.name={config.name!r} is unknown; choose from {', '.join(rules)}")
    return optax.chain(*rules[config.name])
