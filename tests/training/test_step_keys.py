"""The dropout keys of a step depend on its number and on the rows of the global batch, and all differ."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from random_batches import random_batches
from small_training import Training

from bertjax.config import MeshConfig, ModelConfig, OptimizerConfig
from bertjax.model.dropout import row_keys
from bertjax.training import step as step_module

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=12,
)


def test_every_row_of_every_step_has_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, list[int], np.ndarray]] = []

    def record_keys(seed: int, step: jax.Array, rows: jax.Array) -> jax.Array:
        keys = row_keys(seed, step, rows)
        jax.debug.callback(lambda step, rows, keys: calls.append((int(step), rows.tolist(), keys)), step, rows, keys)
        return keys

    monkeypatch.setattr(step_module, "row_keys", record_keys)
    training = Training(MeshConfig(1, 1, 1), MODEL, OptimizerConfig(), dropout_seed=3)
    training.losses(random_batches(2, rows=8, length=12, predictions=2, vocab_size=64))
    jax.effects_barrier()
    assert [(step, rows) for step, rows, _ in calls] == [(0, [*range(8)]), (1, [*range(8)])]
    assert len(np.unique(np.concatenate([keys for *_, keys in calls]))) == 16
