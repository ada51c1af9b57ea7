"""Rows split along the mesh axis `length`: the same losses as on one device, dropout included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from small_training import Training
from test_step import IN_CHUNKS, LENGTH, MODEL, OPTIMIZER, batches

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import check_rows_split

pytestmark = pytest.mark.run

STEPS = 3
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "modernbert": {"position_embedding": "rope", "window": 4, "global_every": 3, "qk_norm": True},
    "alibi": {"position_embedding": "alibi"},
    "relative": {"position_embedding": "relative", "relative_max": 12},
}
MESHES = {
    "length=4": MeshConfig(1, 1, 1, length=4),
    "fsdp=2,tensor=2,length=2": MeshConfig(1, 2, 2, length=2),
    "length=8": MeshConfig(1, 1, 1, length=8),  # more devices than heads
}
SHORT = {("modernbert", "length=8")}
CASES = [(kind, mesh) for kind in KINDS for mesh in MESHES if kind != "relative" or mesh == "length=4"]


def packed_batches() -> Iterator[dict[str, np.ndarray]]:
    """Rows of two sequences, whose border is inside a device's part of the row."""
    for batch in batches(STEPS):
        yield batch | {"sequence_ids": np.where(np.arange(LENGTH) < 13, 1, 2) * np.ones_like(batch["sequence_ids"])}


def figures(mesh: MeshConfig, kind: str, accumulate: int = 1) -> np.ndarray:
    """Loss and norm of the gradient of each step, with dropout."""
    model = replace(MODEL, num_hidden_layers=3, **KINDS[kind])
    training = Training(
        mesh, model, OPTIMIZER, execution=IN_CHUNKS, accumulate=accumulate, dropout_seed=3, packed=lambda _: True
    )
    steps = [training.step(batch) for batch in packed_batches()]
    return np.array([[step["loss"], step["grad_norm"]] for step in steps])


@pytest.mark.parametrize(
    ("kind", "mesh"), [case if case in SHORT else pytest.param(*case, marks=pytest.mark.long) for case in CASES]
)
def test_split_rows_train_as_whole_ones(kind: str, mesh: str) -> None:
    split, whole = figures(MESHES[mesh], kind, accumulate=2), figures(MeshConfig(1, 1, 1), kind)
    np.testing.assert_allclose(split, whole, rtol=1e-5)


def test_a_device_holds_its_part_of_the_tokens() -> None:
    training = Training(MESHES["length=4"], MODEL, OPTIMIZER, execution=IN_CHUNKS)
    with jax.set_mesh(training.mesh):
        traced = training.train_step.trace(training.state, training.on_devices(next(batches(1))))
        text = traced.lower().compile().as_text()
    width, rows = MODEL.intermediate_size, 32
    assert f"f32[{rows},{LENGTH // 4},{width}]" in text
    assert f"f32[{rows},{LENGTH},{width}]" not in text


@pytest.mark.parametrize(
    ("change", "length", "message"),
    [
        ({}, 26, r"stage 2: data.sequence_length=26 is not divisible by mesh.length=4"),
        ({"attention_block": 4}, 24, r"model.attention_block=4 needs whole rows and excludes mesh.length=4"),
        ({"global_tokens": "marked"}, 24, r"model.global_tokens='marked' needs whole rows"),
        ({"position_embedding": "relative", "num_attention_heads": 2}, 24, r"num_attention_heads=2 with relative"),
    ],
)
def test_what_needs_whole_rows_is_refused(change: dict[str, Any], length: int, message: str) -> None:
    mesh = make_mesh(MeshConfig(2, 1, 1, length=4))
    with pytest.raises(ValueError, match=message):
        check_rows_split(mesh, replace(MODEL, **change), length, stage=1)
