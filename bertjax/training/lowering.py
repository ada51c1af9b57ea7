"""The train step of a recipe, lowered for devices that need not be here: what a plan is made of."""

from __future__ import annotations

import contextlib

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import Config
from bertjax.input.batches import batch_spec
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import check_divisible
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import Stage, stage_step
from bertjax.training.state import Blueprint, draw_blueprint


def lower_train_step(config: Config, stage: Stage, mesh: Mesh | AbstractMesh, platform: str) -> jax.stages.Lowered:
    """The step that a run of `config` takes in a stage, on a mesh of devices of a platform (tpu, cuda, cpu).

    Makes no array and needs no device but the one that jax runs on. Raises ValueError if the mesh does not fit.
    """
    check_divisible(mesh, config.model, stage.training, padded_vocab_size(config.model), stage.number)
    optimizer = make_optimizer(config.optimizer)
    with _on(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh, config.execution)
        step = stage_step(config, stage, blueprint, optimizer, platform)
        traced = step.trace(blueprint.state, batch_shapes(stage, mesh))
        return traced.lower(lowering_platforms=(platform,))


def batch_shapes(stage: Stage, mesh: Mesh | AbstractMesh) -> dict[str, jax.ShapeDtypeStruct]:
    """The arrays of a stage's batch, with their places on the mesh."""
    rows = NamedSharding(mesh, P(BATCH_AXES))
    return {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows)
        for name, (shape, dtype) in batch_spec(
            stage.data, stage.training.global_batch_size, stage.training.objectives
        ).items()
    }


def blueprint_on(config: Config, mesh: Mesh | AbstractMesh) -> Blueprint:
    """The state of a run of `config` on a mesh."""
    with _on(mesh):
        return draw_blueprint(config.model, make_optimizer(config.optimizer), mesh, config.execution)


def _on(mesh: Mesh | AbstractMesh) -> contextlib.AbstractContextManager:
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else jax.sharding.use_abstract_mesh(mesh)
