"""Plan memory and time of each stage of a recipe on a machine, from its compiled steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from jax.sharding import Mesh

from bertjax.config import Config, ExecutionConfig
from bertjax.parallel.mesh import batch_shards
from bertjax.parallel.sharding import Replicated, most_microbatches, replicated
from bertjax.plan.collectives import Collective, find_collectives
from bertjax.plan.compiling import (
    Program,
    TooLarge,
    blueprint_on,
    compile_stage,
    compiler_flops,
    lowering_name,
    mesh_context,
    programs_on,
)
from bertjax.plan.roofline import Bound, memory_traffic, step_bound
from bertjax.plan.schedule import Scheduled, schedule_time
from bertjax.plan.topologies import Topology, with_measured_speed
from bertjax.training.memory_fit import AUTO, Fit, fit_to_memory, usable_memory
from bertjax.training.stages import Stage, check_stages_divisible, make_stages, training_mesh
from bertjax.training.teacher import assumed_teacher, stage_flops
from bertjax.training.unrolling import decide_unrolling

HOUR = 3600.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class StagePlan:
    """One stage on one machine. Fields are None if the step does not fit or the chip is unknown."""

    stage: Stage
    config: Config
    mesh: Mesh
    result: Program | TooLarge
    capacity: float | None
    flops: float  # of a step over the global batch, by our formula
    counted_flops: float  # the same as counted by the compiler, for the unrolled step
    traffic: float | None  # bytes that a device reads and writes in a step
    collectives: tuple[Collective, ...]
    bound: Bound | None
    peak: float | None  # FLOP/s of one device
    scheduled: Scheduled | None = None  # None also if the compiler wrote no schedule

    @property
    def fits(self) -> bool:
        """Whether the step compiles and its memory is within the capacity of a device."""
        if isinstance(self.result, TooLarge):
            return False
        return self.capacity is None or self.result.memory.total <= self.capacity

    @property
    def needed(self) -> int | None:
        """Bytes that the step needs on a device; None if the compiler does not report them."""
        return self.result.needed if isinstance(self.result, TooLarge) else self.result.memory.total

    @property
    def rows_of_a_device(self) -> int:
        """The rows of a microbatch on one device."""
        return self.stage.training.rows_at_a_time // batch_shards(self.mesh)

    @property
    def steps(self) -> int:
        """Number of steps of the stage."""
        return self.stage.stop - self.stage.start

    @property
    def mfu_bound(self) -> float | None:
        """Upper bound of the model FLOPs utilisation."""
        if self.bound is None or self.peak is None:
            return None
        return self.flops / (self.peak * self.mesh.devices.size * self.bound.overlapped)

    @property
    def estimate(self) -> float | None:
        """Seconds of a step by the compiler's schedule, with the gradient exchange in series."""
        if self.bound is None or self.scheduled is None:
            return None
        return self.scheduled.seconds + self.bound.interconnect + self.bound.network

    @property
    def mfu_estimate(self) -> float | None:
        """The model FLOPs utilisation of the estimated step."""
        if self.estimate is None or self.peak is None:
            return None
        return self.flops / (self.peak * self.mesh.devices.size * self.estimate)

    @property
    def hours(self) -> tuple[float, float] | None:
        """Hours of the stage: at best, and if no communication is overlapped."""
        if self.bound is None:
            return None
        return self.steps * self.bound.overlapped / HOUR, self.steps * self.bound.serial / HOUR


@dataclass(frozen=True)
class Plan:
    """A recipe on a machine."""

    recipe: Config  # as given
    config: Config  # the same with resolved mesh sizes
    topology: Topology
    stages: tuple[StagePlan, ...]
    replicated: Replicated
    price: float | None  # per chip-hour
    fitted: str = ""  # microbatches and recomputation chosen so that the steps fit, as a line to print

    @property
    def is_whole(self) -> bool:
        """Whether every stage of the recipe is planned."""
        return len(self.stages) == 1 + len(self.recipe.stages)

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return all(stage.fits for stage in self.stages)

    @property
    def hours(self) -> tuple[float, float] | None:
        """Hours of the planned stages together, like `StagePlan.hours`."""
        hours = [stage.hours for stage in self.stages if stage.hours is not None]
        if len(hours) < len(self.stages):
            return None
        return sum(best for best, _ in hours), sum(worst for _, worst in hours)

    @property
    def estimated_hours(self) -> float | None:
        """Hours of the planned stages together by the compiler's schedule; None if a stage has none."""
        estimates = [(stage.steps, stage.estimate) for stage in self.stages]
        if any(seconds is None for _, seconds in estimates):
            return None
        return sum(steps * (seconds or 0.0) for steps, seconds in estimates) / HOUR


def make_plan(
    config: Config,
    topology: Topology,
    *,
    stage: int | None = None,
    price: float | None = None,
    adapt: bool = False,
    say: Say,
) -> Plan:
    """Compile every stage of a recipe, or one, for a machine. A chip without a data sheet is measured.

    With `adapt`, a stage whose microbatches have too few rows for the machine is planned with fewer microbatches.
    Raises ValueError if the mesh does not fit the machine, or the batch or the model the mesh.
    """
    count = len(make_stages(config))
    if stage is not None and not 1 <= stage <= count:
        raise ValueError(f"--stage {stage}: the recipe has {count}; give a number from 1 to {count}")
    recipe, mesh = config, mesh_on(config, topology)
    sizes = {axis: size for axis, size in mesh.shape.items() if axis != "data"}
    config = replace(config, mesh=replace(config.mesh, data=-1, dcn_data=-1, **sizes))
    stages = make_stages(config) if stage is None else (make_stages(config)[stage - 1],)
    if adapt:
        stages = tuple(_with_rows_for_all(one, mesh, say) for one in stages)
    check_stages_divisible(config, mesh, stages)
    if teacher := assumed_teacher(config):
        depth, width = teacher.num_hidden_layers, teacher.hidden_size
        say(f"distillation.teacher: assumed to have {depth} layers that are {width} wide")
    if topology.chip is None:
        topology = with_measured_speed(topology, config.execution.dtype)
    before, config = config, decide_unrolling(config, mesh, teacher)
    if config.execution.unrolled_periods > before.execution.unrolled_periods:
        say("with all layers unrolled, as the run does (execution.scan_unroll=auto); 1 compiles sooner")
    plan_once = _planner(config, topology, mesh, say)
    config, fitted = _fit(config, topology, mesh, stage, plan_once)
    fitted_stages = make_stages(config)
    stages = [fitted_stages[one.number] if one.training.grad_accum_steps == AUTO else one for one in stages]
    planned = tuple(replace(plan_once(config.execution, one), config=config) for one in stages)
    whole = replicated(blueprint_on(config, mesh).state.params, mesh)
    return Plan(recipe, config, topology, planned, whole, price, fitted)


def _planner(config: Config, topology: Topology, mesh: Mesh, say: Say) -> Callable[[ExecutionConfig, Stage], StagePlan]:
    """Return a function that plans a stage with an execution, once for the same settings."""
    count = len(make_stages(config))

    @functools.cache
    def counted_flops(execution: ExecutionConfig, stage: Stage) -> float:
        return compiler_flops(replace(config, execution=execution), stage)

    @functools.cache
    def plan_once(execution: ExecutionConfig, stage: Stage) -> StagePlan:
        training = stage.training
        settings = f" in {training.microbatches} microbatches" if training.microbatches > 1 else ""
        settings += f" with remat {execution.remat}" if execution.remat != config.execution.remat else ""
        say(f"compiling stage {stage.number + 1} of {count} for {topology.name}{settings}")
        # Microbatches do not change the count of a step's FLOPs.
        at_once = replace(stage, training=replace(training, grad_accum_steps=1))
        with_execution = replace(config, execution=execution)
        return plan_stage(with_execution, stage, topology, mesh, counted_flops(execution, at_once))

    return plan_once


def _fit(
    config: Config,
    topology: Topology,
    mesh: Mesh,
    stage: int | None,
    plan_once: Callable[[ExecutionConfig, Stage], StagePlan],
) -> Fit:
    """Return the config with the microbatches and recomputation that a run on this machine would choose."""

    def compiled(execution: ExecutionConfig, stage: Stage) -> float:
        needed = plan_once(execution, stage).needed
        return math.inf if needed is None else needed

    programs = programs_on(config, mesh, lowering_name(topology.platform))

    def bound(execution: ExecutionConfig, stage: Stage) -> tuple[int, int]:
        with mesh_context(mesh):
            return programs.bound(execution, stage)

    limit = usable_memory(topology.platform, topology.capacity)
    return fit_to_memory(config, mesh, limit, bound, compiled, None if stage is None else stage - 1)


def _with_rows_for_all(stage: Stage, mesh: Mesh, say: Say) -> Stage:
    """Return the stage with fewer microbatches if its own number leaves devices without rows."""
    if stage.training.grad_accum_steps == AUTO:
        return stage
    count, most = stage.training.microbatches, most_microbatches(stage.training, batch_shards(mesh))
    if most is None or most == count:
        return stage
    say(
        f"stage {stage.number + 1}: {count} microbatches cannot be shared evenly by {batch_shards(mesh)} shards; "
        f"starting from {most}"
    )
    return replace(stage, training=replace(stage.training, grad_accum_steps=most))


def mesh_on(config: Config, topology: Topology) -> Mesh:
    """Make a config's mesh on a machine's devices. Raises ValueError like `training_mesh`."""
    return training_mesh(config, topology.devices, topology.slices)


def plan_stage(
    config: Config, stage: Stage, topology: Topology, mesh: Mesh, counted_flops: float | None = None
) -> StagePlan:
    """Compile a stage and estimate its memory and time."""
    result = compile_stage(config, stage, mesh, topology.platform)
    flops = stage.tokens_per_step * stage_flops(config, stage, assumed_teacher(config))
    counted = compiler_flops(config, stage) if counted_flops is None else counted_flops
    traffic, collectives, bound, scheduled = None, (), None, None
    devices = list(mesh.devices.flat)
    if isinstance(result, Program):
        traffic = memory_traffic(result.module)
        collectives = tuple(find_collectives(result.module, mesh, _slices_in_mesh(topology, devices)))
        if topology.chip is not None:
            # The compiler counts a loop body once; attention of long rows, or with relative positions, loops over
            # blocks of queries.
            bound = step_bound(max(counted, flops) / len(devices), traffic, collectives, devices, topology)
            scheduled = schedule_time(result.module, result.cycles, topology.chip) if result.cycles else None
    return StagePlan(
        stage=stage,
        config=config,
        mesh=mesh,
        result=result,
        capacity=topology.capacity,
        flops=flops,
        counted_flops=counted,
        traffic=traffic,
        collectives=collectives,
        bound=bound,
        peak=topology.chip.flops if topology.chip else None,
        scheduled=scheduled,
    )


def _slices_in_mesh(topology: Topology, devices: Sequence[object]) -> list[int]:
    """Return the slice of each device, in mesh order."""
    numbers = {id(device): number for device, number in zip(topology.devices, topology.slices, strict=True)}
    return [numbers[id(device)] for device in devices]
