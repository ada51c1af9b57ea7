"""The step is the same on every mesh, reduces once, and skips non-finite updates."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from covering import covering_rows
from random_batches import random_batches
from small_training import OBJECTIVES, Training

from bertjax.config import ExecutionConfig, MeshConfig, ModelConfig, OptimizerConfig
from bertjax.model.network import Params
from bertjax.parallel.mesh import make_mesh
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.state import draw_blueprint, init_state
from bertjax.training.step import averages, split_microbatches

pytestmark = pytest.mark.run

ROWS, LENGTH, PREDICTIONS, STEPS = 32, 24, 6, 10
MODEL = ModelConfig(
    vocab_size=300,  # padded to 384
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=LENGTH,
)
IN_CHUNKS = ExecutionConfig(logits_chunk=16)
OPTIMIZER = OptimizerConfig(learning_rate=5e-3, warmup_steps=2)
MESHES = {
    "data=8": MeshConfig(8, 1, 1),
    "data=2,fsdp=4": MeshConfig(2, 4, 1),
    "data=2,fsdp=2,tensor=2": MeshConfig(2, 2, 2),
}


def training_on(
    mesh: MeshConfig, *, model: ModelConfig = MODEL, execution: ExecutionConfig = IN_CHUNKS, **settings: Any
) -> Training:
    return Training(mesh, model, OPTIMIZER, execution=execution, **settings)


def batches(count: int = STEPS):
    return random_batches(count, rows=ROWS, length=LENGTH, predictions=PREDICTIONS, vocab_size=MODEL.vocab_size)


@pytest.fixture(scope="module")
def single() -> np.ndarray:
    return training_on(MeshConfig(1, 1, 1)).losses(batches())


@pytest.fixture(scope="module")
def single_with_dropout() -> np.ndarray:
    return training_on(MeshConfig(1, 1, 1), dropout_seed=3).losses(batches())


@pytest.fixture(scope="module")
def clipped_on_tpu() -> Training:
    """A step compiled as for TPUs, with clipped gradients; shared by tests."""
    return training_on(MeshConfig(1, 1, 1), platform="tpu", clip_norm=1e-3)


LONG = pytest.mark.long
SHORT = ("data=2,fsdp=2,tensor=2", 4, "full")


@pytest.fixture(scope="module")
def on_all_axes() -> Training:
    """The step of `SHORT`; tests share it, and each restarts from the first state."""
    mesh, accumulate, remat = SHORT
    return training_on(MESHES[mesh], execution=replace(IN_CHUNKS, remat=remat), accumulate=accumulate)


# --long tests every pair of values.
HOW = {
    "mesh": (SHORT[0], *[mesh for mesh in MESHES if mesh != SHORT[0]]),
    "accumulate": (4, 1, 2),
    "remat": ("full", "none"),
}
MATRIX = [tuple(row.values()) for row in covering_rows(HOW)]


@pytest.mark.parametrize([*HOW], [SHORT, *[pytest.param(*row, marks=LONG) for row in MATRIX if row != SHORT]])
def test_losses_equal_a_single_device(
    mesh: str, accumulate: int, remat: str, single: np.ndarray, on_all_axes: Training
) -> None:
    if (mesh, accumulate, remat) == SHORT:
        training = on_all_axes.restarted()
    else:
        training = training_on(MESHES[mesh], execution=replace(IN_CHUNKS, remat=remat), accumulate=accumulate)
    np.testing.assert_allclose(training.losses(batches()), single, rtol=1e-5)


def test_first_state_does_not_depend_on_the_mesh() -> None:
    """Tests `init_state`, because `Training` draws its weights without compiling a program."""
    model, optimizer = replace(MODEL, num_hidden_layers=1), make_optimizer(OPTIMIZER)
    states = []
    for mesh in (MeshConfig(1, 1, 1), MeshConfig(1, 2, 2)):
        over = make_mesh(mesh, jax.devices()[: mesh.fsdp * mesh.tensor])
        states.append(init_state(draw_blueprint(model, optimizer, over), model, optimizer, 0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8), *jax.device_get(states))


@LONG  # the suite has dropout and every option of the architecture on all axes, in test_equivalence.py
@pytest.mark.parametrize("mesh", MESHES)
def test_dropout_does_not_depend_on_mesh_or_accumulation(mesh: str, single_with_dropout: np.ndarray) -> None:
    training = training_on(MESHES[mesh], accumulate=2, dropout_seed=3)
    np.testing.assert_allclose(training.losses(batches()), single_with_dropout, rtol=1e-5)


@LONG  # the suite has the keys of a step, in test_step_keys.py, and the dropout of a network, in tests/model
def test_dropout_changes_the_losses(single: np.ndarray, single_with_dropout: np.ndarray) -> None:
    assert np.abs(single_with_dropout / single - 1).max() > 1e-3


def test_gradients_are_clipped(single: np.ndarray, clipped_on_tpu: Training) -> None:
    clipped = clipped_on_tpu.restarted().losses(batches())
    assert (np.abs(clipped / single - 1)[2:] > 1e-4).all()


def test_losses_fall_when_batches_repeat(on_all_axes: Training) -> None:
    training = on_all_axes.restarted()
    batch = next(batches())
    losses = [training.step(batch)["loss"] for _ in range(30)]
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("mesh", [SHORT[0], *[pytest.param(mesh, marks=LONG) for mesh in MESHES if mesh != SHORT[0]]])
def test_no_device_holds_an_activation_of_the_global_batch(mesh: str, on_all_axes: Training) -> None:
    accumulate, shards = SHORT[1], MESHES[mesh].data * MESHES[mesh].fsdp
    training = on_all_axes.restarted() if mesh == SHORT[0] else training_on(MESHES[mesh], accumulate=accumulate)
    with jax.set_mesh(training.mesh):
        data = training.on_devices(next(batches()))
        text = training.train_step.trace(training.state, data).lower().compile().as_text()
    several = "|".join(f"{ROWS // parts}" for parts in (1, accumulate))
    whole = re.findall(rf"f32\[(?:{several}),{LENGTH},\d+|f32\[(?:{several}),\d+,{LENGTH},", text)
    assert not whole, f"activations of all rows in the program of one device: {sorted(set(whole))}"
    assert re.search(rf"f32\[{ROWS // accumulate // shards},{LENGTH},", text), "the pattern finds no activation at all"


def test_padding_rows_of_the_vocabulary_stay_zero(on_all_axes: Training) -> None:
    training = on_all_axes.restarted()
    for batch in batches(3):
        training.step(batch)
    word = np.asarray(training.state.params["encoder"]["embeddings"]["word"])
    bias = np.asarray(training.state.params["mlm_head"]["bias"])
    assert word.shape[0] == 384
    assert not word[300:].any()
    assert not bias[300:].any()
    assert word[:300].any(axis=1).all()


@LONG  # the suite has that padding stays zero, and in tests/model/test_network.py that it has no logits
def test_losses_do_not_depend_on_vocabulary_padding(single: np.ndarray) -> None:
    training = training_on(MeshConfig(1, 1, 1), model=replace(MODEL, vocab_pad_multiple=1))
    np.testing.assert_allclose(training.losses(batches()), single, rtol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "tpu"], ids=["conditional", "select"])
def test_nonfinite_update_is_skipped_and_counted(
    platform: str, on_all_axes: Training, clipped_on_tpu: Training
) -> None:
    training = (on_all_axes if platform == "cpu" else clipped_on_tpu).restarted()
    first, poisoned, *_ = batches(3)
    training.step(first)
    before = jax.device_get((training.state.params, training.state.opt_state))
    poisoned["mlm_weights"][5, 0] = np.nan
    for number in (1, 2):
        metrics = training.step(poisoned)
        assert (metrics["skipped_updates"], metrics["skipped_in_a_row"]) == (number, number)
        assert not np.isfinite(metrics["grad_norm"])
    after = jax.device_get((training.state.params, training.state.opt_state))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert int(training.state.step) == 3
    metrics = training.step(first)
    assert (metrics["skipped_updates"], metrics["skipped_in_a_row"]) == (2, 0)
    assert metrics["learning_rate"] == pytest.approx(float(make_schedule(OPTIMIZER, 100)(jnp.int32(3))))


@pytest.mark.long  # the suite has gradient metrics of a hook, in tests/run/test_small_run.py
def test_gradient_metrics_change_only_the_metrics() -> None:
    def norms(grads: Params) -> dict[str, jax.Array]:
        return {f"{name}_norm": optax.tree.norm(tree) for name, tree in grads.items()}

    batch = next(batches())
    plain = training_on(MeshConfig(2, 2, 2)).step(batch)
    with_norms = training_on(MeshConfig(2, 2, 2), accumulate=2, gradient_metrics=norms).step(batch)
    added = [with_norms.pop(name) for name in sorted(with_norms.keys() - plain.keys())]
    assert len(added) > 1
    assert np.linalg.norm(added) == pytest.approx(plain["grad_norm"], rel=1e-5)
    assert with_norms == pytest.approx(plain, rel=1e-6)


def test_eval_step_sums_what_the_train_step_averages(on_all_axes: Training) -> None:
    training = on_all_axes.restarted()
    batch = next(batches())
    with jax.set_mesh(training.mesh):
        sums = training.eval_step(training.state.params, training.on_devices(batch))
    assert float(sums["mlm_weight"]) == batch["mlm_weights"].sum()
    assert float(sums["tokens"]) == batch["sequence_ids"].sum()
    expected = training.step(batch)
    for name, value in averages(sums, sums, OBJECTIVES).items():
        assert float(value) == pytest.approx(expected[name], rel=1e-6), name


def test_microbatches_are_strided() -> None:
    parts = split_microbatches({"x": jnp.arange(8)}, 2)["x"]
    np.testing.assert_array_equal(parts, [[0, 2, 4, 6], [1, 3, 5, 7]])
