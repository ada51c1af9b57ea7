"""Outputs and gradient of a small network for one batch of a task, on a mesh of several devices."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
import optax
import pytest
from small_tasks import random_params

from bertjax.config import MeshConfig, TaskConfig
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.run import Start
from bertjax.model.network import Params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.evaluate import make_predict_step
from bertjax.training.state import draw_blueprint, new_state
from bertjax.training.step import averages, make_train_step

TEMPERATURE = 0.1


class OneStep(NamedTuple):
    """Figures and outputs of a batch, and the gradient of its loss."""

    figures: dict[str, float]
    outputs: np.ndarray
    gradient: Params


def one_step(
    kind: str, devices: int, batch: dict[str, np.ndarray], start: Start, labels: int = 0, microbatches: int = 1
) -> OneStep:
    """Evaluate a batch and take the gradient of its loss, without dropout, with weights from a fixed seed."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    task, optimizer = KINDS[kind], optax.identity()
    config = task.headed(start.model, labels)
    blueprint = draw_blueprint(config, optimizer, mesh)
    objectives = (task.objective(TaskConfig(temperature=TEMPERATURE)),)
    params = random_params(config, 3)
    with jax.set_mesh(mesh):
        device_params = jax.device_put(params, blueprint.shardings.params)
        outputs, sums = make_predict_step(blueprint, objectives, task.outputs)(device_params, to_global(mesh, batch))
        # A step with rate 1 and without an update rule subtracts the gradient.
        step = make_train_step(
            blueprint,
            objectives,
            optimizer,
            lambda _: 1.0,
            clip_norm=1e9,
            grad_accum_steps=microbatches,
            dropout_seed=None,
        )
        initial = jax.jit(lambda params: new_state(params, optimizer), out_shardings=blueprint.shardings)(device_params)
        state, metrics = step(initial, to_global(mesh, batch))
        figures = {name: float(value) for name, value in averages(sums, sums, objectives).items()}
        assert figures[f"{kind}_loss"] == pytest.approx(float(metrics[f"{kind}_loss"]), rel=1e-6)
        after = jax.device_get(state.params)
    gradient = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), params, after)
    return OneStep(figures, np.asarray(outputs), gradient)


def require_equal_gradients(one: Params, other: Params, tolerance: float = 2e-5) -> None:
    """Require that the difference has a norm below `tolerance` times the gradient's."""
    scale = float(optax.tree.norm(one))
    assert scale > 1e-3
    assert float(optax.tree.norm(optax.tree.sub(one, other))) < tolerance * scale
