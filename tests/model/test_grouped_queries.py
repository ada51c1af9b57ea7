"""Grouped queries: several heads of queries share one of keys and values, on every backend and on a mesh."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import heads_split_over, some_ids
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.self_attention import LayerInputs, SelfAttention
from bertjax.model.parameters import named_arrays
from bertjax.parallel.sharding import divided_sizes

LENGTH, HEADS, GROUPS = 128, 4, 2
GROUPED = ModelConfig(
    hidden_size=128,
    num_attention_heads=HEADS,
    num_key_value_heads=GROUPS,
    attention_bias="none",
    position_embedding="rope",
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=LENGTH,
)
BACKENDS = {"xla": 0, "blocks": 8, "mosaic_interpreted": 8}  # and the window


def numpy_attention(x: np.ndarray, kernels: dict[str, np.ndarray], ids: np.ndarray, window: int) -> np.ndarray:
    """Grouped attention in float64, one head of queries at a time; query head h reads key head h // (H / G)."""
    q, k, v = (np.einsum("bld,dhk->blhk", x, kernels[f"{role}/kernel"]) for role in ("query", "key", "value"))
    starts = np.array([[np.flatnonzero(row == one)[0] for one in row] for row in ids])
    angles = (np.arange(LENGTH) - starts)[:, :, None] * 10_000.0 ** (-np.arange(0, 32, 2) / 32)

    def rotate(y: np.ndarray) -> np.ndarray:
        cos, sin, (first, second) = np.cos(angles)[:, :, None], np.sin(angles)[:, :, None], np.split(y, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    q, k, out = rotate(q), rotate(k), np.zeros_like(x)
    seen = ids[:, :, None] == ids[:, None]
    if window:
        seen &= np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH)) <= window
    for head in range(HEADS):
        group = head // (HEADS // GROUPS)
        scores = np.where(seen, np.einsum("bik,bjk->bij", q[:, :, head], k[:, :, group]) / 32**0.5, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("bij,bjk->bik", weights / weights.sum(-1, keepdims=True), v[:, :, group])
        out += mixed @ kernels["output/kernel"][head]
    return out


@pytest.mark.parametrize(("backend", "window"), BACKENDS.items())
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.long), 2])
def test_grouped_queries_match_numpy(backend: str, window: int, devices: int) -> None:
    config = replace(GROUPED, window=window, global_every=0 if window else 1)
    attention = SelfAttention(config, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(attention)
    kernels = {name: np.asarray(x, np.float64) for name, x in named_arrays(nnx.to_pure_dict(state)).items()}
    assert kernels["key/kernel"].shape == kernels["value/kernel"].shape == (128, GROUPS, 32)
    x, ids = np.random.default_rng(1).normal(size=(2, LENGTH, 128)), some_ids(LENGTH, packed=True)
    name = "xla" if backend == "blocks" else backend
    with jax.set_mesh(heads_split_over(devices)):
        inputs = LayerInputs(ids, backend=name, window=window)
        actual = jax.jit(lambda x: nnx.merge(graphdef, state)(x, inputs))(jnp.asarray(x, jnp.float32))
    real, reference = np.asarray(ids) > 0, numpy_attention(x, kernels, np.asarray(ids), window)
    assert np.abs(np.asarray(actual) - reference)[real].max() < 1e-5 * np.abs(reference[real]).max()


def test_mesh_must_divide_key_value_heads() -> None:
    assert ("model.num_key_value_heads", GROUPS, "tensor") in divided_sizes(GROUPED, 128)
