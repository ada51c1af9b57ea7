"""A frozen teacher is sharded like its student."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from test_step import MODEL, OPTIMIZER

from bertjax.config import MeshConfig
from bertjax.model.parameters import named_arrays
from bertjax.parallel.mesh import make_mesh
from bertjax.training.exchange import frozen_shardings
from bertjax.training.optimizer import make_optimizer
from bertjax.training.state import draw_blueprint, draw_frozen

pytestmark = pytest.mark.run

WITHOUT_DROPOUT = replace(MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MeshConfig(8, 1, 1), marks=pytest.mark.long, id="data=8"),
        pytest.param(MeshConfig(2, 2, 2), id="all axes"),
    ],
)
def test_teacher_is_sharded_like_its_student(mesh):
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
    # The step's argument has the same shardings, so that no device holds a whole copy.
    for sharding, leaf in zip(
        jax.tree.leaves(frozen_shardings(blueprint)), jax.tree.leaves(teacher.params), strict=True
    ):
        assert sharding == leaf.sharding
    (table,) = [leaf for name, leaf in named_arrays(teacher.params).items() if name.endswith("embeddings/word")]
    part = np.prod(table.sharding.shard_shape(table.shape)) / table.size
    assert part == 1 / (mesh.fsdp * mesh.tensor)
