"""Weights gathered by layer (`execution.gather`) give the step that weights gathered at once give."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from test_step import IN_CHUNKS, LONG, MESHES, MODEL, batches, training_on

from bertjax.config import ExecutionConfig, MeshConfig, ModelConfig
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
    "periods": Case("data=2,fsdp=2,tensor=2", MODERN, {"remat": "dots"}, accumulate=2),
    "bert": Case("data=2,fsdp=4", BERT, {"remat": "full"}),
    "shared": Case("data=2,fsdp=4", ALBERT, {"remat": "full"}),
    "unrolled": Case("data=2,fsdp=2,tensor=2", BERT, {"remat": "full", "scan_unroll": 3}),
    "bfloat16": Case("data=2,fsdp=4", BERT, {"remat": "full", "dtype": "bfloat16"}, accumulate=2),
}


@pytest.mark.parametrize("name", ["periods", *[pytest.param(name, marks=LONG) for name in list(CASES)[1:]]])
def test_training_and_evaluation_equal_gathering_at_once(name: str) -> None:
    mesh, model, settings, accumulate = CASES[name]
    execution = replace(IN_CHUNKS, **settings)

    def figures(mesh: MeshConfig, execution: ExecutionConfig) -> list[float]:
        training = training_on(mesh, model=model, execution=execution, accumulate=accumulate, dropout_seed=3)
        *seen, held_out = batches(5)
        losses = training.losses(seen)
        with jax.set_mesh(training.mesh):
            sums = training.eval_step(training.state.params, training.on_devices(held_out))
        return [*losses, float(averages(sums, sums, training.objectives)["loss"])]

    # bfloat16 rounds gradients on their way, at places that depend on the devices.
    reference = MESHES[mesh] if execution.dtype == "bfloat16" else MeshConfig(1, 1, 1)
    by_layer = figures(MESHES[mesh], replace(execution, gather="layer"))
    np.testing.assert_allclose(by_layer, figures(reference, execution), rtol=1e-5)


@pytest.mark.parametrize("gather", ["layer", pytest.param("step", marks=LONG)])
def test_no_device_holds_all_layers_whole(gather: str) -> None:
    execution = replace(IN_CHUNKS, remat="full", gather=gather)
    training = training_on(MESHES["data=2,fsdp=4"], model=BERT, execution=execution, accumulate=2)
    with jax.set_mesh(training.mesh):
        data = training.on_devices(next(batches()))
        text = training.train_step.trace(training.state, data).lower().compile().as_text()
    assert re.search(r"f32\[3,8,64\]", text), "the shards of the kernels of the feed-forward nets"
    assert bool(re.search(r"f32\[3,32,64\]", text)) == (gather == "step")
