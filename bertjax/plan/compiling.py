"""Compile a stage's train step with the real compiler, and read its memory."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass, replace
from typing import cast

import jax
from jax.sharding import AbstractMesh, Mesh

from bertjax.config import Config, MeshConfig
from bertjax.parallel.mesh import make_abstract_mesh
from bertjax.parallel.sharding import device_bytes
from bertjax.plan.hlo import Module, parse
from bertjax.plan.schedule import read_cycles
from bertjax.plan.topologies import empty_dump
from bertjax.training.exchange import frozen_shapes
from bertjax.training.optimizer import make_optimizer
from bertjax.training.out_of_memory import EXHAUSTED
from bertjax.training.stages import Stage, batch_shapes, check_stages_divisible
from bertjax.training.state import Blueprint
from bertjax.training.step_programs import StepPrograms
from bertjax.training.teacher import assumed_teacher


def lower_train_step(config: Config, stage: Stage, mesh: Mesh | AbstractMesh, platform: str) -> jax.stages.Lowered:
    """Lower the train step of a stage for a mesh of devices of a platform (tpu, cuda, cpu).

    Makes no array and needs no device except the one that jax runs on. Raises ValueError if the mesh does not fit.
    """
    check_stages_divisible(config, cast(Mesh, mesh), [stage])
    with mesh_context(mesh):
        traced = programs_on(config, mesh, platform).trace(config.execution, stage)
        return traced.lower(lowering_platforms=(platform,))


def programs_on(config: Config, mesh: Mesh | AbstractMesh, platform: str | None = None) -> StepPrograms:
    """Return the steps of a run, with its assumed teacher, to be traced under `mesh_context`."""
    # No array is made, so an abstract mesh serves as well.
    optimizer, teacher = make_optimizer(config.optimizer), assumed_teacher(config)
    return StepPrograms(config, cast(Mesh, mesh), optimizer, teacher, platform=platform)


def blueprint_on(config: Config, mesh: Mesh | AbstractMesh) -> Blueprint:
    """Return the abstract state of a run on a mesh."""
    with mesh_context(mesh):
        return programs_on(config, mesh).blueprint(config.execution)


def mesh_context(mesh: Mesh | AbstractMesh) -> contextlib.AbstractContextManager:
    """Return the context in which steps on a mesh are traced."""
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else jax.sharding.use_abstract_mesh(mesh)


_NEEDED = re.compile(
    r"required for HLO temporaries \(([\d.]+)([KMGT]?)\)|Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"
)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Memory:
    """Bytes that a step needs on one device."""

    parameters: int
    optimizer: int  # moments
    batch: int
    other: int  # remaining arguments: counters and layout padding
    results: int  # results that do not reuse an argument's memory
    temporaries: int  # activations, gradients, copies of weights in the compute dtype
    program: int

    @property
    def total(self) -> int:
        """Sum of all parts."""
        arguments = self.parameters + self.optimizer + self.batch + self.other
        return arguments + self.results + self.temporaries + self.program


@dataclass(frozen=True)
class Program:
    """A compiled step."""

    memory: Memory
    module: Module
    seconds: float  # compile time
    cycles: dict[str, int]  # cycles by instruction name; empty if the compiler wrote no schedule


@dataclass(frozen=True)
class TooLarge:
    """A step that the compiler rejects because a device has too little memory."""

    arguments: int  # bytes: parameters, moments, batch
    needed: int | None  # total bytes, if the compiler reports them
    seconds: float


def compile_stage(config: Config, stage: Stage, mesh: Mesh, platform: str) -> Program | TooLarge:
    """Compile a stage's step, with its real shardings, for a mesh whose devices need not be available.

    Raises ValueError if the mesh does not fit the batch or the model.
    """
    lowered = lower_train_step(config, stage, mesh, lowering_name(platform))
    sizes, dump = argument_sizes(config, stage, mesh), empty_dump()
    start = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        return TooLarge(sum(sizes), _parse_needed(str(error), sum(sizes)), time.perf_counter() - start)
    seconds = time.perf_counter() - start
    analysis, text = compiled.memory_analysis(), compiled.as_text()
    assert analysis is not None and text is not None, "XLA reports both for every program that it compiles"
    parameters, optimizer, batch = sizes
    memory = Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=batch,
        other=max(0, analysis.argument_size_in_bytes - sum(sizes)),
        results=max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes),
        temporaries=analysis.temp_size_in_bytes,
        program=analysis.generated_code_size_in_bytes,
    )
    cycles = read_cycles(dump) if dump is not None and dump.is_dir() else {}
    return Program(memory, parse(text), seconds, cycles)


def argument_sizes(config: Config, stage: Stage, mesh: Mesh) -> tuple[int, int, int]:
    """Return the bytes per device of parameters (frozen ones included), optimizer state and batch."""
    blueprint = blueprint_on(config, mesh)
    parameters = device_bytes((blueprint.state.params, frozen_shapes(blueprint)))
    return parameters, device_bytes(blueprint.state.opt_state), device_bytes(batch_shapes(stage, mesh))


def compiler_flops(config: Config, stage: Stage) -> float:
    """Return XLA's FLOP count of one step over the global batch, with element-wise work and rematerialisation.

    XLA counts the body of a loop once, so the step is lowered with unrolled layers, one microbatch, one chunk of
    predictions, one device and XLA attention, whose blocks of queries remain a loop for long rows. The count needs no
    compilation.
    """
    # A teacher may have more layers than the model: a scan is unrolled up to its own length.
    execution = replace(config.execution, attention="xla", scan_unroll=1 << 20, logits_chunk=1 << 40)
    unrolled = replace(config, execution=execution, mesh=MeshConfig(1, 1, 1))
    at_once = replace(stage, training=replace(stage.training, grad_accum_steps=1))
    lowered = lower_train_step(unrolled, at_once, make_abstract_mesh(unrolled.mesh, 1), "cpu")
    costs = lowered.cost_analysis()
    assert costs is not None, "XLA:CPU counts the FLOPs of every program"
    return float(costs["flops"])


def _parse_needed(message: str, arguments: int) -> int | None:
    match = _NEEDED.search(message)
    if not match:
        return None
    temporaries, unit, used, used_unit, *_ = match.groups()
    if used:
        return round(float(used) * _UNITS[used_unit])
    return arguments + round(float(temporaries) * _UNITS[unit])


def lowering_name(platform: str) -> str:
    """Return jax's name of a device's platform as a target of lowering."""
    return "cuda" if platform == "gpu" else platform
