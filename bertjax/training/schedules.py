"""Learning-rate schedules, by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.config import OptimizerConfig

Schedule = Callable[[jax.Array], jax.Array]


def _linear(config: OptimizerConfig, step: jax.Array, total: int) -> jax.Array:
    return jnp.maximum(total - step, 0.0) / total


def _linear_after_warmup(config: OptimizerConfig, step: jax.Array, total: int) -> jax.Array:
    return jnp.clip((total - step) / (total - config.warmup_steps), 0.0, 1.0)


def _polynomial(config: OptimizerConfig, step: jax.Array, total: int) -> jax.Array:
    return _linear(config, step, total) ** config.decay_power


def _cosine(config: OptimizerConfig, step: jax.Array, total: int) -> jax.Array:
    since = (step - config.warmup_steps) / (total - config.warmup_steps)
    return 0.5 * (1.0 + jnp.cos(math.pi * jnp.clip(since, 0.0, 1.0)))


def _warmup_stable_decay(config: OptimizerConfig, step: jax.Array, total: int) -> jax.Array:
    remainder = jnp.clip((total - step) / max(config.decay_steps, 1), 0.0, 1.0)
    return remainder if config.decay_shape == "linear" else 1.0 - jnp.sqrt(1.0 - remainder)


# Factors on the peak learning rate at a step after the warm-up.
_SHAPES = {
    "linear": _linear,
    "linear_after_warmup": _linear_after_warmup,
    "polynomial": _polynomial,
    "cosine": _cosine,
    "warmup_stable_decay": _warmup_stable_decay,
}


def make_schedule(config: OptimizerConfig, total_steps: int) -> Schedule:
    """Make the function from step to learning rate (float32): from 0 to the peak at warmup_steps, to 0 at total_steps.

    With `final_share` s the rate ends at s times the peak: a factor f below becomes s + (1 - s) f.

    linear               as in google-research/bert's optimization.py: the decay starts at step 0, so that the rate
                         drops to learning_rate * (1 - warmup / total) when the warm-up ends
    linear_after_warmup  from the peak at the end of the warm-up to 0 at total_steps (fairseq, Hugging Face)
    polynomial           linear to the power `decay_power` (NVIDIA's LAMB recipe: 0.5)
    cosine               half a cosine from the end of the warm-up to the end
    warmup_stable_decay  the peak until the last `decay_steps` steps, then to 0: linearly, or as 1 - sqrt(share of them
                         done) with `decay_shape='1-sqrt'` (Hägele et al. 2024; ModernBERT)

    To warm up again within a run, give a stage its own learning rate. Raises ValueError for an unknown name.
    """
    if config.schedule not in _SHAPES:
        raise ValueError(f"optimizer.schedule={config.schedule!r} is unknown; choose from {', '.join(_SHAPES)}")
    shape = _SHAPES[config.schedule]

    def schedule(step: jax.Array) -> jax.Array:
        step = step.astype(jnp.float32)
        warmup, decay = step / max(config.warmup_steps, 1), shape(config, step, total_steps)
        if config.final_share:
            decay = config.final_share + (1.0 - config.final_share) * decay
        return config.learning_rate * jnp.where(step < config.warmup_steps, warmup, decay)

    return schedule
