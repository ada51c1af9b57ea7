"""Heads of tasks: logits, losses and gradients are those of transformers' classes; packing and padding change nothing."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from their_model import relative, their_task_model

from bertjax.config import ModelConfig
from bertjax.convert.huggingface_names import from_huggingface_tensors, to_huggingface_tensors
from bertjax.model.bert import abstract_bert, bind, init_params
from bertjax.model.lstm import BiLstmLayer
from bertjax.model.task_heads import TASK_NETWORKS
from bertjax.parallel.sharding import is_names, spec
from bertjax.training.checkpoint import named_arrays

CONFIG = ModelConfig(
    vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160,
    max_position_embeddings=64, vocab_pad_multiple=8,
)  # fmt: skip
ROWS, LENGTH, CHOICES = 12, 24, 4
HEADS = {
    "sequence": {"num_labels": 3},
    "choice": {},
    "tokens": {"num_labels": 5},
    "span": {},
    "vector": {},
}


def with_head(head: str, **fields) -> ModelConfig:
    return replace(CONFIG, head=head, **(HEADS[head] | fields))


def texts(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of two segments and of different lengths: [rows, LENGTH]."""
    draw = np.random.default_rng(seed)
    real = (np.arange(LENGTH) < draw.integers(10, LENGTH + 1, (rows, 1))).astype(np.int32)
    return {
        "input_ids": draw.integers(1, CONFIG.vocab_size, real.shape).astype(np.int32) * real,
        "token_type_ids": ((np.arange(LENGTH) >= draw.integers(3, 9, (rows, 1))) * real).astype(np.int32),
        "sequence_ids": real,
        "cls_positions": np.zeros((rows, 1), np.int32),
    }


def packed(batch: dict[str, np.ndarray], together: int) -> dict[str, np.ndarray]:
    """The same sequences, that many of them after one another in each row."""
    lengths = batch["sequence_ids"].sum(axis=1).reshape(-1, together)
    starts = np.cumsum(lengths, axis=1) - lengths
    made = {key: np.zeros((len(lengths), together * LENGTH), np.int32) for key in list(batch)[:3]}
    for row, place in np.ndindex(*lengths.shape):
        stretch = slice(starts[row, place], starts[row, place] + lengths[row, place])
        for key in ("input_ids", "token_type_ids"):
            made[key][row, stretch] = batch[key][row * together + place, : lengths[row, place]]
        made["sequence_ids"][row, stretch] = place + 1
    return made | {"cls_positions": starts.astype(np.int32)}


def encoded(network, batch, keys=None) -> jax.Array:
    inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
    return network.encode(*inputs, keys, packed=batch["cls_positions"].shape[1] > 1)


def logits_of(network, batch, keys=None) -> jax.Array:
    hidden = encoded(network, batch, keys)
    if hasattr(network, "sequence_logits"):
        return network.sequence_logits(hidden, batch["cls_positions"], keys)
    if hasattr(network, "choice_logits"):
        return network.choice_logits(hidden, batch["cls_positions"], keys)
    if hasattr(network, "token_logits"):
        return network.token_logits(hidden, batch["sequence_ids"], keys)
    return network.span_logits(hidden)


def computed(config: ModelConfig, params: dict, batch: dict, keys: jax.Array | None = None) -> np.ndarray:
    graphdef = abstract_bert(config)[0]
    return jax.device_get(jax.jit(lambda params: logits_of(bind(graphdef, params), batch, keys))(params))


@functools.cache
def drawn(config: ModelConfig) -> dict:
    return jax.jit(lambda: init_params(config, jax.random.key(0)))()
