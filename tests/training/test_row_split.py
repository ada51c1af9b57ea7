"""Rows split along the mesh axis `length` give the losses of one device, with dropout, for every objective."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from small_training import Training
from test_family_training import family_batches
from test_step import IN_CHUNKS, LENGTH, LONG, MODEL, OPTIMIZER, ROWS, batches

from bertjax.config import Config, MeshConfig
from bertjax.families.networks import init_params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import check_rows_split
from bertjax.training.objectives import OBJECTIVES, TEACHER, choose
from bertjax.training.stages import check_stages_divisible, make_stages
from bertjax.training.step import averages

pytestmark = pytest.mark.run

STEPS = 3
KINDS: dict[str, dict[str, Any]] = {
    "bert": {},
    "modernbert": {"position_embedding": "rope", "window": 4, "global_every": 2, "qk_norm": True},
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


def in_two_sequences(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split rows into two sequences, whose border is inside a device's part of the row."""
    return batch | {"sequence_ids": np.where(np.arange(LENGTH) < 13, 1, 2) * np.ones_like(batch["sequence_ids"])}


@functools.cache
def split_training(mesh: MeshConfig, kind: str, accumulate: int = 1) -> Training:
    """A training with dropout and packed rows."""
    settings = {"execution": IN_CHUNKS, "dropout_seed": 3, "packed": True}
    return Training(mesh, replace(MODEL, **KINDS[kind]), OPTIMIZER, accumulate=accumulate, **settings)


def figures(training: Training) -> np.ndarray:
    """The loss and the gradient norm of each step."""
    steps = [training.step(batch) for batch in map(in_two_sequences, batches(STEPS))]
    return np.array([[step["loss"], step["grad_norm"]] for step in steps])


@pytest.mark.parametrize(
    ("kind", "mesh"), [case if case in SHORT else pytest.param(*case, marks=LONG) for case in CASES]
)
def test_split_rows_train_like_whole_rows(kind: str, mesh: str) -> None:
    split, whole = split_training(MESHES[mesh], kind, accumulate=2), split_training(MeshConfig(1, 1, 1), kind)
    np.testing.assert_allclose(figures(split.restarted()), figures(whole.restarted()), rtol=1e-5)


class Case(NamedTuple):
    """A network and its objectives."""

    objectives: tuple[str, ...]
    changes: dict[str, Any]
    mesh: str = "fsdp=2,tensor=2,length=2"


OBJECTIVE_CASES = {
    "taught": Case(("mlm", "nsp", "distil_mlm", "distil_cosine", "distil_layers"), {"initializer_range": 0.2}),
    "order": Case(("mlm", "sop"), {"family": "albert", "embedding_size": 16, "layer_groups": 1}),
    "spans": Case(("mlm", "sbo"), {"family": "spanbert", "pooler": "none"}),
    "replaced": Case(("mlm", "rtd"), {"family": "electra", "pooler": "gelu", "generator_width": 0.5}),
    "replaced by DeBERTa": Case(
        ("mlm", "rtd"),
        {
            "family": "deberta-v3",
            "generator_width": 1.0,
            "generator_layers": 1,
            "embedding_sharing": "gdes",
            "rtd_context": True,
            "mlm_decoder": "enhanced",
            "position_embedding": "relative",
            "relative_max": 12,
            "relative_buckets": 6,
            "relative_shared": True,
            "relative_norm": True,
        },
        "length=4",
    ),
    "next": Case(("clm",), {"causal": True}),
}
TAUGHT_BY = replace(MODEL, num_hidden_layers=4, initializer_range=0.2)


def learning_on(mesh: MeshConfig, name: str) -> Training:
    """A training of this case, with its teacher; weights that `fsdp` splits are gathered by layer."""
    changes, objectives = OBJECTIVE_CASES[name].changes, choose(OBJECTIVE_CASES[name].objectives)
    taught = any(objective.teacher for objective in objectives)
    return Training(
        mesh,
        replace(MODEL, **changes),
        OPTIMIZER,
        execution=replace(IN_CHUNKS, gather="layer" if mesh.fsdp > 1 else "step"),
        dropout_seed=3,
        objectives=objectives,
        packed=True,
        frozen={TEACHER: (TAUGHT_BY, jax.jit(init_params, static_argnums=0)(TAUGHT_BY, jax.random.key(1)))}
        if taught
        else {},
    )


def learnable_batches(count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches with the arrays of every objective."""
    for batch, _ in zip(family_batches("bert"), range(count), strict=False):
        real = (batch["sequence_ids"] > 0).astype(np.float32)
        yield in_two_sequences(batch) | {
            "distil_cosine_weights": real,
            "distil_layers_weights": real,
            "clm_positions": np.arange(LENGTH, dtype=np.int32) * np.ones_like(batch["input_ids"]),
            "clm_labels": np.roll(batch["input_ids"], -1, axis=1),
            "clm_weights": real * np.roll(real, -1, axis=1),
        }


def held_out_figures(training: Training) -> dict[str, float]:
    """Every figure of an evaluation."""
    with jax.set_mesh(training.mesh):
        batch = training.on_devices(next(learnable_batches(1)))
        sums = training.eval_step(training.state.params, batch, training.frozen)
    return {name: float(value) for name, value in averages(sums, sums, training.objectives).items()}


def test_split_row_cases_cover_every_objective() -> None:
    assert {name for learned in OBJECTIVE_CASES.values() for name in learned.objectives} == {*OBJECTIVES}


@LONG
@pytest.mark.parametrize("name", OBJECTIVE_CASES)
def test_objectives_train_like_on_one_device(name: str) -> None:
    split, whole = (learning_on(mesh, name) for mesh in (MESHES[OBJECTIVE_CASES[name].mesh], MeshConfig(1, 1, 1)))
    for batch in learnable_batches(STEPS):
        assert split.step(batch) == pytest.approx(whole.step(batch), rel=2e-6)
    assert held_out_figures(split) == pytest.approx(held_out_figures(whole), rel=2e-6)


def test_device_holds_only_its_part_of_the_tokens() -> None:
    training = split_training(MESHES["length=8"], "modernbert", accumulate=2)
    with jax.set_mesh(training.mesh):
        traced = training.train_step.trace(training.state, training.on_devices(in_two_sequences(next(batches(1)))))
        text = traced.lower().compile().as_text()
    width, rows = MODEL.intermediate_size, ROWS // 2
    assert f"f32[{rows},{LENGTH // 8},{width}]" in text
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
def test_options_that_need_whole_rows_are_refused(change: dict[str, Any], length: int, message: str) -> None:
    mesh = make_mesh(MeshConfig(2, 1, 1, length=4))
    with pytest.raises(ValueError, match=message):
        check_rows_split(mesh, replace(MODEL, **change), length, stage=1)


def test_teacher_that_needs_whole_rows_is_refused() -> None:
    config = Config(mesh=MeshConfig(2, 1, 1, length=4))
    teacher = replace(config.model, attention_block=4)
    with pytest.raises(ValueError, match=r"the teacher's attention_block=4 needs whole rows and excludes mesh.length"):
        check_stages_divisible(config, make_mesh(config.mesh), make_stages(config), teacher)
