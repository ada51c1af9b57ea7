"""How much of the learning rate each part of a network gets when it is fine-tuned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.config import ModelConfig


def scale_by_depth(model: ModelConfig, decay: float) -> optax.GradientTransformation:
    """Updates times `decay` to the power of how many layers are above: the head's and the pooler's stay as they are.

    Of N layers the last is one below the head, the embeddings are N + 1 below (ULMFiT's discriminative rates, as BERT's
    successors have them). Where the encoder is frozen (`model.features`) its updates, decay of weights included, are 0.
    """
    below = 0.0 if model.features else decay
    layers = below ** (model.num_hidden_layers - jnp.arange(model.num_hidden_layers, dtype=jnp.float32))

    def scale(path: tuple, update: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[0] != "encoder":
            return update
        if names[1] != "layers":
            return update * below ** (model.num_hidden_layers + 1)
        # Of a stack of layers, each has its own.
        return update * layers.reshape(-1, *[1] * (update.ndim - 1))

    def apply(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        return jax.tree_util.tree_map_with_path(scale, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), apply)
