"""Gathering weights by layer (`execution.gather`) gives the same step as gathering them at once."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pytest
from small_training import Training
from test_step import IN_CHUNKS, LONG, MESHES, MODEL, batches, training_on

from bertjax.config import MeshConfig, ModelConfig
from bertjax.training.step import averages

pytestmark = pytest.mark.run


class Case(NamedTuple):
    mesh: str
    model: ModelConfig
    execution: dict[str, Any]
    accumulate: int = 1


BERT = replace(MODEL, num_hidden_layers=3)
ALBERT = replace(MODEL, num_hidden_layers=4, embedding_size=16, layer_groups=2, type_vocab_size=0)
MODERN = replace(MODEL, num_hidden_layers=5, window=4, global_every=2, first_norm=False, norm_place="pre", mlp="glu")
CASES = {
    "bert": Case("data=2,fsdp=4", BERT, {"remat": "full"}, accumulate=2),
    "periods": Case("data=2,fsdp=2,tensor=2", MODERN, {"remat": "dots"}, accumulate=2),
    "shared": Case("data=2,fsdp=4", ALBERT, {"remat": "full"}),
    "unrolled": Case("data=2,fsdp=2,tensor=2", BERT, {"remat": "full", "scan_unroll": 3}),
    "bfloat16": Case("data=2,fsdp=4", BERT, {"remat": "full", "dtype": "bfloat16"}, accumulate=2),
}


def training(case: Case, *, mesh: MeshConfig | None = None, gather: Literal["step", "layer"] = "step") -> Training:
    execution = replace(IN_CHUNKS, gather=gather, **case.execution)
    mesh = mesh or MESHES[case.mesh]
    return training_on(mesh, model=case.model, execution=execution, accumulate=case.accumulate, dropout_seed=3)


@pytest.fixture(scope="module")
def bert_by_layer() -> Training:
    return training(CASES["bert"], gather="layer")


def figures(training: Training) -> list[float]:
    """The losses of four steps and of an evaluation after them."""
    *seen, held_out = batches(5)
    losses = training.losses(seen)
    with jax.set_mesh(training.mesh):
        sums = training.eval_step(training.state.params, training.on_devices(held_out))
    return [*losses, float(averages(sums, sums, training.objectives)["loss"])]


@pytest.mark.parametrize("name", ["bert", *[pytest.param(name, marks=LONG) for name in list(CASES)[1:]]])
def test_gathering_by_layer_equals_gathering_at_once(name: str, bert_by_layer: Training) -> None:
    case = CASES[name]
    by_layer = bert_by_layer.restarted() if name == "bert" else training(case, gather="layer")
    # With bfloat16, gradients are rounded at places that depend on the mesh.
    reference = training(case, mesh=None if case.execution.get("dtype") == "bfloat16" else MeshConfig(1, 1, 1))
    np.testing.assert_allclose(figures(by_layer), figures(reference), rtol=1e-5)


@pytest.mark.parametrize("gather", ["layer", pytest.param("step", marks=LONG)])
def test_gathering_by_layer_never_holds_all_layers(gather: Literal["step", "layer"], bert_by_layer: Training) -> None:
    step = bert_by_layer.restarted() if gather == "layer" else training(CASES["bert"])
    with jax.set_mesh(step.mesh):
        data = step.on_devices(next(batches()))
        text = step.train_step.trace(step.state, data).lower().compile().as_text()
    assert re.search(r"f32\[3,8,64\]", text), "the shards of the kernels of the feed-forward nets"
    assert bool(re.search(r"f32\[3,32,64\]", text)) == (gather == "step")
