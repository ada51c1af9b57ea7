"""Train steps by execution and stage, each traced and compiled once, and the memory that they take."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from bertjax.config import Config, ExecutionConfig, ModelConfig
from bertjax.parallel.sharding import device_bytes
from bertjax.runtime.host_memory import device_memory
from bertjax.runtime.processes import Processes
from bertjax.storage.progress import SIGNS
from bertjax.training.exchange import frozen_shapes
from bertjax.training.memory_fit import Fit, fit_to_memory, is_undecided, usable_memory, values_bytes
from bertjax.training.out_of_memory import EXHAUSTED
from bertjax.training.stages import Stage, batch_shapes, stage_step
from bertjax.training.state import Blueprint, draw_blueprint
from bertjax.training.step import GradientMetrics, TrainStep
from bertjax.training.teacher import frozen_networks


def data_bytes(memory: Any) -> int:
    """Bytes of a compiled step's arguments, unaliased results and temporaries, from XLA's `memory_analysis()`."""
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + results + memory.temp_size_in_bytes


class StepPrograms:
    """Builds and caches the blueprints and steps of a config on a mesh.

    Because steps are cached, a run executes the very program that was compiled to measure memory. `teacher` is the
    frozen network's model; `platform` is the target of the compiler, by default the mesh's.
    """

    def __init__(
        self,
        config: Config,
        mesh: Mesh,
        optimizer: optax.GradientTransformation,
        teacher: ModelConfig | None = None,
        gradient_metrics: GradientMetrics | None = None,
        platform: str | None = None,
    ) -> None:
        self._config, self._mesh, self._optimizer = config, mesh, optimizer
        self._teacher, self._gradient_metrics, self._platform = teacher, gradient_metrics, platform
        self.blueprint = functools.cache(self._draw)
        self.step = functools.cache(self._make)

    def _draw(self, execution: ExecutionConfig) -> Blueprint:
        frozen = frozen_networks(self._teacher, self._mesh, execution)
        return draw_blueprint(self._config.model, self._optimizer, self._mesh, execution, frozen)

    def _make(self, execution: ExecutionConfig, stage: Stage) -> TrainStep:
        return stage_step(
            self._config,
            stage,
            self.blueprint(execution),
            self._optimizer,
            self._platform,
            gradient_metrics=self._gradient_metrics,
        )

    def trace(self, execution: ExecutionConfig, stage: Stage) -> jax.stages.Traced:
        """Trace a step for the shapes of its arguments, under the mesh. Makes no array."""
        blueprint = self.blueprint(execution)
        return self.step(execution, stage).trace(
            blueprint.state, batch_shapes(stage, self._mesh), frozen_shapes(blueprint)
        )

    def bound(self, execution: ExecutionConfig, stage: Stage) -> tuple[int, int]:
        """Bytes of a step on a device: its arguments, and an upper bound of the total; see `memory_fit.Bound`."""
        blueprint = self.blueprint(execution)
        arguments = device_bytes((blueprint.state, batch_shapes(stage, self._mesh), frozen_shapes(blueprint)))
        return arguments, arguments + values_bytes(self.trace(execution, stage))

    def compiled_bytes(self, execution: ExecutionConfig, stage: Stage) -> float:
        """Bytes that a compiled step takes on a device; infinite if the compiler refuses it."""
        try:
            memory = self.trace(execution, stage).lower().compile().memory_analysis()
        except jax.errors.JaxRuntimeError as error:
            if EXHAUSTED not in str(error):
                raise
            return math.inf
        assert memory is not None, "XLA reports it for every program that it compiles"
        return data_bytes(memory) + memory.generated_code_size_in_bytes

    def fit(self, processes: Processes | None = None) -> Fit:
        """Fit the config to the devices of all `processes`, which decide together; see `fit_to_memory`."""
        config, device = self._config, self._mesh.local_devices[0]
        if not is_undecided(config):
            return Fit(config)

        def agreed(what: str, value: float) -> list[float]:
            return [value] if processes is None else [float(text) for text in processes.gather(what, repr(value))]

        def compiled(execution: ExecutionConfig, stage: Stage) -> float:
            return max(agreed("memory of a step", self.compiled_bytes(execution, stage)))

        memory = min(agreed("memory of a device", device_memory(device) or math.inf))
        limit = usable_memory(device.platform, memory if math.isfinite(memory) else None)
        with jax.set_mesh(self._mesh), SIGNS.doing("choosing microbatches that fit the devices"):
            return fit_to_memory(config, self._mesh, limit, self.bound, compiled)
