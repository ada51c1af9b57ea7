"""A frozen teacher is asked by an objective, on any mesh, and is no part of what is trained."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_batches import random_batches
from test_step import LENGTH, MODEL, OPTIMIZER, PREDICTIONS, ROWS

from bertjax.config import MeshConfig, ModelConfig
from bertjax.families.networks import init_params
from bertjax.model.parameters import named_arrays
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.evaluate import make_eval_step
from bertjax.training.exchange import frozen_shardings
from bertjax.training.objectives import Batch, Forward, Keys, Objective, Sums
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.state import draw_blueprint, draw_frozen, init_state
from bertjax.training.step import make_train_step

pytestmark = pytest.mark.run

WITHOUT_DROPOUT = replace(MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    """How far the student's vectors of masked tokens are from the teacher's."""
    both = (forward(batch, "teacher"), forward(batch))
    teacher, student = (jnp.take_along_axis(x, batch["mlm_positions"][:, :, None], axis=1) for x in both)
    error = jnp.square(teacher - student).mean(axis=-1)
    return {"loss": jnp.sum(error * batch["mlm_weights"])}


IMITATE = Objective("imitate", "mlm_weights", _sums, figures=("loss",))


def losses(mesh_config: MeshConfig, student: ModelConfig, seed: int, accumulate: int = 1) -> tuple[list[float], float]:
    """(three losses of training and one of evaluation, how far all parameters moved)."""
    devices = jax.devices()[: mesh_config.data * mesh_config.fsdp * mesh_config.tensor]
    mesh, optimizer = make_mesh(mesh_config, devices), make_optimizer(OPTIMIZER)
    with jax.set_mesh(mesh):
        teacher = draw_frozen(WITHOUT_DROPOUT, mesh)
        places = jax.tree.map(lambda leaf: leaf.sharding, teacher.params)
        frozen = {"teacher": jax.jit(lambda: init_params(WITHOUT_DROPOUT, jax.random.key(0)), out_shardings=places)()}
        blueprint = draw_blueprint(student, optimizer, mesh, frozen={"teacher": teacher})
        state = init_state(blueprint, student, optimizer, seed)
        before = jax.device_get(state.params)
        step = make_train_step(
            blueprint,
            (IMITATE,),
            optimizer,
            make_schedule(OPTIMIZER, 100),
            clip_norm=1.0,
            grad_accum_steps=accumulate,
            dropout_seed=None,
        )
        found = []
        shape = {"rows": ROWS, "length": LENGTH, "predictions": PREDICTIONS, "vocab_size": MODEL.vocab_size}
        for batch in random_batches(3, **shape):
            state, metrics = step(state, to_global(mesh, batch), frozen)
            found.append(float(metrics["loss"]))
        evaluated = make_eval_step(blueprint, (IMITATE,), packed=lambda batch: False)
        sums = evaluated(state.params, to_global(mesh, batch), frozen)
        found.append(float(sums["imitate_loss"] / sums["imitate_weight"]))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).sum(), before, jax.device_get(state.params))
    assert set(state.params) == set(before), "the teacher is no part of the state"
    return found, float(sum(jax.tree.leaves(moved)))


@pytest.mark.long  # the suite has one in test_distil_layers.py
def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    found, _ = losses(MeshConfig(1, 1, 1), WITHOUT_DROPOUT, seed=0)
    assert found[0] == 0.0


@pytest.mark.long
def test_a_smaller_student_comes_nearer():
    found, moved = losses(MeshConfig(1, 1, 1), replace(WITHOUT_DROPOUT, num_hidden_layers=1), seed=1)
    assert found[0] > found[1] > found[2] > found[3] > 0 and moved > 0


@pytest.mark.long
@pytest.mark.parametrize("mesh", [MeshConfig(8, 1, 1), MeshConfig(2, 2, 2)], ids=["data=8", "all axes"])
def test_losses_with_a_teacher_do_not_depend_on_the_mesh(mesh):
    student = replace(WITHOUT_DROPOUT, num_hidden_layers=1)
    wanted, _ = losses(MeshConfig(1, 1, 1), student, seed=1)
    np.testing.assert_allclose(losses(mesh, student, seed=1)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MeshConfig(8, 1, 1), marks=pytest.mark.long, id="data=8"),
        pytest.param(MeshConfig(2, 2, 2), id="all axes"),
    ],
)
def test_the_teacher_is_sharded_as_the_student_is(mesh):
    student, over = replace(WITHOUT_DROPOUT, num_hidden_layers=1), make_mesh(mesh)
    with jax.set_mesh(over):
        teacher = draw_frozen(WITHOUT_DROPOUT, over)
        blueprint = draw_blueprint(student, make_optimizer(OPTIMIZER), over, frozen={"teacher": teacher})
    specs = {name: leaf.sharding.spec for name, leaf in named_arrays(teacher.params).items()}
    assert specs == {name: sharding.spec for name, sharding in named_arrays(blueprint.shardings.params).items()}
    axes = {
        axis for spec in specs.values() for part in spec for axis in ([part] if isinstance(part, str) else part or ())
    }
    assert {"fsdp", "tensor"} <= axes
    # The step takes its teacher so, and leaves no copy of it on every device.
    for sharding, leaf in zip(
        jax.tree.leaves(frozen_shardings(blueprint)), jax.tree.leaves(teacher.params), strict=True
    ):
        assert sharding == leaf.sharding
    (table,) = [leaf for name, leaf in named_arrays(teacher.params).items() if name.endswith("embeddings/word")]
    part = np.prod(table.sharding.shard_shape(table.shape)) / table.size
    assert part == 1 / (mesh.fsdp * mesh.tensor)
