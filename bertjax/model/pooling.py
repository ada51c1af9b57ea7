"""Text vectors: which layer's token vectors to read, and how to pool them into one vector per text."""

from __future__ import annotations

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from bertjax.config import ModelConfig
from bertjax.model.heads import TASK_POOLERS, existing
from bertjax.model.network import Network, network_class

Pooling = Literal["mean", "cls", "pooler", "max", "none"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
Layer = int | Literal["last", "sum4", "concat4"]  # 0 is the embeddings; -1 the last layer, as in a list of all

_COMBINED = 4  # number of last layers that sum4 and concat4 combine (paper, section 5.3)


def check_vectors(config: ModelConfig, pooling: str, layer: str | int) -> None:
    """Raise ValueError for an unknown pooling or layer, or for a meaningless combination of the two."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r}: choose one of {', '.join(POOLINGS)}")
    depth = config.num_hidden_layers
    if isinstance(layer, bool | float) or (isinstance(layer, str) and layer not in ("last", "sum4", "concat4")):
        raise ValueError(f"layer={layer!r}: choose last, sum4, concat4, or a number from 0 (the embeddings) to {depth}")
    if isinstance(layer, int) and not -depth - 1 <= layer <= depth:
        raise ValueError(f"layer={layer}: the model has layers 1 to {depth}; 0 is the embeddings, -1 the last layer")
    if layer in ("sum4", "concat4") and depth < _COMBINED:
        raise ValueError(f"layer={layer}: needs at least {_COMBINED} layers, and the model has {depth}")
    if pooling == "pooler" and not network_class(config).pooled:
        raise ValueError(
            f"pooling=pooler: a network with model.head={config.head!r} has no pooler; choose mean, cls or max"
        )
    is_task_pooler = config.pooler in TASK_POOLERS or (config.pooler == "none" and not network_class(config).of_task)
    if pooling == "pooler" and is_task_pooler:
        raise ValueError(
            f"pooling=pooler: the model has no pooler (model.pooler={config.pooler!r}); choose mean, cls or max"
        )
    if pooling == "pooler" and not is_last(config, layer):
        raise ValueError(f"pooling=pooler layer={layer}: the pooler was trained on the last layer; leave layer out")


def is_last(config: ModelConfig, layer: Layer) -> bool:
    """Whether `layer` denotes the last layer."""
    return layer in ("last", -1, config.num_hidden_layers)


def vector_width(config: ModelConfig, layer: Layer) -> int:
    """Dims of a vector that is read from `layer`."""
    return config.hidden_size * (_COMBINED if layer == "concat4" else 1)


def token_vectors(
    bert: Network, input_ids: jax.Array, token_type_ids: jax.Array, sequence_ids: jax.Array, layer: Layer
) -> jax.Array:
    """Compute a vector per token, float32 [B, L, `vector_width`]; the inputs are int32 [B, L], one sequence per row."""
    if is_last(bert.encoder.embeddings.config, layer):
        hidden = bert.encoder(input_ids, token_type_ids, sequence_ids, packed=False)
        return hidden.astype(jnp.float32)
    states = bert.encoder.hidden_states(input_ids, token_type_ids, sequence_ids, packed=False).astype(jnp.float32)
    if layer == "sum4":
        return states[-_COMBINED:].sum(axis=0)
    if layer == "concat4":
        return jnp.concatenate(list(states[-_COMBINED:]), axis=-1)
    return states[layer]


def pool(bert: Network, vectors_BLD: jax.Array, real_BL: jax.Array, pooling: Pooling) -> jax.Array:
    """Compute one vector per row, [B, D]: [CLS]'s, the pooler's, or the mean or maximum over the real tokens.

    Real tokens are all but padding: [CLS] and [SEP] count, as in sentence-transformers. A row without real tokens gives
    0, or minus infinity for the maximum. Pooling `none` returns the vectors of the tokens.
    """
    if pooling == "none":
        return vectors_BLD
    if pooling == "cls":
        return vectors_BLD[:, 0]
    if pooling == "pooler":
        return existing(bert.pooler)(vectors_BLD[:, :1])[:, 0]
    real_BL1 = real_BL[:, :, None]
    if pooling == "max":
        return jnp.where(real_BL1, vectors_BLD, -jnp.inf).max(axis=1)
    return jnp.where(real_BL1, vectors_BLD, 0).sum(axis=1) / jnp.maximum(real_BL1.sum(axis=1), 1)
