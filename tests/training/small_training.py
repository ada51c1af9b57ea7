"""A state and its step on some mesh, without a run around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, MeshConfig, ModelConfig, OptimizerConfig
from bertjax.families.networks import abstract_network
from bertjax.model.network import Params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import put_on_devices, to_global
from bertjax.training.evaluate import make_eval_step
from bertjax.training.objectives import Objective, choose
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.state import draw_blueprint, draw_frozen, new_state
from bertjax.training.step import GradientMetrics, make_train_step

OBJECTIVES = choose(("mlm", "nsp"))
NOTHING: Mapping[str, tuple[ModelConfig, Any]] = MappingProxyType({})


def draw_params(config: ModelConfig, seed: int = 0, *, noise: float = 0.0) -> Params:
    """Draw weights with the distributions of `init_params`, but without compiling a program, and add noise.

    Without noise, biases are 0 and scales 1, so that a test would not notice if two vectors were exchanged.
    """
    draw, shake = (np.random.default_rng([seed, number]) for number in range(2))
    _, shapes, axes = abstract_network(config)

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct, names: tuple[str, ...]) -> np.ndarray:
        shape = [config.vocab_size if name == "vocab" else size for name, size in zip(names, leaf.shape, strict=True)]
        if path[-1].key in ("bias", "scale"):
            first = np.full(shape, path[-1].key == "scale", np.float64)
        else:
            first = config.initializer_range * draw.normal(size=shape).clip(-2.0, 2.0)
        padding = [(0, size - own) for size, own in zip(leaf.shape, shape, strict=True)]
        return (np.pad(first, padding) + noise * shake.normal(size=leaf.shape)).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes, axes)


class Training:
    """A state and its step on the first devices, with the weights of `draw_params`.

    `frozen` maps the name of each frozen network to its config and parameters.
    """

    def __init__(
        self,
        mesh: MeshConfig,
        model: ModelConfig,
        settings: OptimizerConfig,
        *,
        execution: ExecutionConfig = DEFAULT_EXECUTION,
        steps: int = 100,
        accumulate: int = 1,
        dropout_seed: int | None = None,
        clip_norm: float = 1.0,
        objectives: tuple[Objective, ...] = OBJECTIVES,
        packed: bool | None = None,
        gradient_metrics: GradientMetrics | None = None,
        platform: str | None = None,
        frozen: Mapping[str, tuple[ModelConfig, Any]] = NOTHING,
    ) -> None:
        self.objectives = objectives
        self.mesh = make_mesh(mesh, jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor * mesh.length])
        optimizer = make_optimizer(settings)
        with jax.set_mesh(self.mesh):
            networks = {name: draw_frozen(config, self.mesh, execution) for name, (config, _) in frozen.items()}
            self.frozen = {
                name: put_on_devices(params, jax.tree.map(lambda leaf: leaf.sharding, networks[name].params))
                for name, (_, params) in frozen.items()
            }
            self.blueprint = draw_blueprint(model, optimizer, self.mesh, execution, networks)
            begin = jax.jit(new_state, static_argnums=1, out_shardings=self.blueprint.shardings)
            self.state = begin(draw_params(model), optimizer)
            self._first = jax.device_get(self.state)
            step = make_train_step(
                self.blueprint,
                objectives,
                optimizer,
                make_schedule(settings, steps),
                clip_norm=clip_norm,
                grad_accum_steps=accumulate,
                dropout_seed=dropout_seed,
                packed=packed,
                gradient_metrics=gradient_metrics,
                platform=platform,
            )
            self.train_step = replace(step, frozen=self.frozen)
            self.eval_step = make_eval_step(self.blueprint, objectives, packed=packed)

    def restarted(self) -> Training:
        """Return to the first state, with the same compiled step."""
        self.state = jax.device_put(self._first, self.blueprint.shardings)
        return self

    def step(self, batch: dict[str, np.ndarray]) -> dict[str, float]:
        """Take a step and return its metrics."""
        with jax.set_mesh(self.mesh):
            self.state, metrics = self.train_step(self.state, self.on_devices(batch))
        return {name: float(value) for name, value in metrics.items()}

    def losses(self, batches: Iterable[dict[str, np.ndarray]]) -> np.ndarray:
        """Take a step with each batch and return the losses."""
        return np.array([self.step(batch)["loss"] for batch in batches])

    def on_devices(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Put the batch on the mesh."""
        return to_global(self.mesh, batch)
