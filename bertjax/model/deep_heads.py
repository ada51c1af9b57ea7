"""The layers between the encoder and the classes in heads of tasks, if `model.task_heads` is deep (BigBird)."""

from __future__ import annotations

import jax
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.layers import ACTIVATIONS, Dense, FeedForward, LayerNorm


class InnerDense(nnx.Module):
    """Dense and the activation of the layers, [..., D] -> [..., D] (transformers' `BigBirdClassificationHead`)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)
        self.activation = config.hidden_act

    def __call__(self, x: jax.Array) -> jax.Array:
        return ACTIVATIONS[self.activation](self.dense(x))


class InnerMlp(nnx.Module):
    """LayerNorm(x + MLP(x)), [B, L, D] -> [B, L, D] (transformers' `BigBirdForQuestionAnsweringHead`, no dropout)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.mlp = FeedForward(config, rngs=rngs)
        self.norm = LayerNorm(config, config.hidden_size)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x + self.mlp(x))
