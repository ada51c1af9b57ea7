"""The train step of a recipe, lowered for devices that need not be here: what a plan is made of."""

from __future__ import annotations

import jax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import Config
from bertjax.input.batches import batch_spec
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.mesh import BATCH_AXES, make_abstract_mesh
from bertjax.parallel.sharding import check_divisible
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import Stage, stage_step
from bertjax.training.state import draw_blueprint


def lower_train_step(config: Config, stage: Stage, devices: int, platform: str) -> jax.stages.Lowered:
    """The step that a run of `config` takes in a stage, on a mesh of so many devices of a platform (tpu, cuda, cpu).

    Makes no array and needs no device but the one that jax runs on. Raises ValueError if the mesh does not fit.
    """
    mesh: AbstractMesh = make_abstract_mesh(config.mesh, devices)
    check_divisible(mesh, config.model, stage.training, padded_vocab_size(config.model))
    optimizer = make_optimizer(config.optimizer)
    with jax.sharding.use_abstract_mesh(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh)
        step = stage_step(config, stage, blueprint, optimizer, platform)
        rows = NamedSharding(mesh, P(BATCH_AXES))
        batch = {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows)
            for name, (shape, dtype) in batch_spec(stage.data, stage.training.global_batch_size).items()
        }
        return step.trace(blueprint.state, batch).lower(lowering_platforms=(platform,))
