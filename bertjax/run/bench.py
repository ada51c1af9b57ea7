"""Benchmark a recipe on this machine: time a run's own steps and batches for a short while."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.families.networks import init_params
from bertjax.input.feed import AHEAD, Feed, open_feed
from bertjax.input.training_data import RunBatches
from bertjax.model.network import Params
from bertjax.parallel.mesh import batch_shards
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.training.exchange import Frozen
from bertjax.training.flops import Peak, matmul_peak, mfu, peak_flops
from bertjax.training.optimizer import make_optimizer
from bertjax.training.out_of_memory import explain_exhausted_memory
from bertjax.training.stages import Stage, make_stages, training_mesh
from bertjax.training.state import Blueprint, FrozenNetwork, TrainState, init_state
from bertjax.training.step import TrainStep
from bertjax.training.step_programs import StepPrograms, data_bytes
from bertjax.training.teacher import assumed_teacher, stage_flops
from bertjax.training.unrolling import decide_unrolling

MakeRows = Callable[[Stage], RunBatches]
_WARM_UP = 2  # steps to discard
_LEAST_STEPS = 5
_BOTTLENECK = 0.05  # share of time waiting for input above which the input is the bottleneck
_LIKELY_MFU = 0.4  # for a first estimate of the time of a step


@dataclass(frozen=True)
class Machine:
    """The devices of the benchmark."""

    device_kind: str
    platform: str
    devices: int
    measured: Peak  # of one device
    data_sheet_flops: float | None  # FLOP/s of one device, bf16 dense
    bfloat16: Peak | None  # only on a CPU, if the recipe computes in float32


@dataclass(frozen=True)
class Steps:
    """Timings of consecutive steps that read the input of a run."""

    seconds: tuple[float, ...]  # of each step
    slots: int  # tokens of a step, padding included
    tokens: float  # mean tokens of a step, without padding
    waiting: float  # share of the time spent waiting for input

    @property
    def median(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and third quartile of the seconds of a step."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(low), float(high)

    @property
    def mean(self) -> float:
        """Mean seconds of a step, occasional slow steps included."""
        return statistics.fmean(self.seconds)


@dataclass(frozen=True)
class Input:
    """The speed of the data pipeline while no step runs."""

    engine: str
    threads: int
    batches_per_second: float
    rows_per_second: float


@dataclass(frozen=True)
class Program:
    """The compiled step."""

    compile_seconds: float
    compiled_bytes: int  # on one device, according to the compiler: arguments, results and temporaries
    peak_bytes: int | None  # on one device since the process began, if the device reports it


@dataclass(frozen=True)
class StageFigures:
    """The figures of a stage. `measured` is the stage itself, or a copy with smaller steps."""

    stage: Stage
    measured: Stage
    steps: Steps
    input: Input
    program: Program
    mfu_of_measured: float  # relative to the matmul rate measured on this machine
    mfu_of_data_sheet: float | None  # relative to the data sheet

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second on all devices together, without padding."""
        return self.steps.tokens / self.steps.mean

    @property
    def slots_per_second(self) -> float:
        """Tokens per second on all devices together, padding included."""
        return self.steps.slots / self.steps.mean

    @property
    def least_seconds(self) -> float:
        """Seconds that the matmuls of a step, padding included, take at the rate measured here."""
        return self.mfu_of_measured * self.steps.mean * self.steps.slots / self.steps.tokens

    @property
    def input_limits(self) -> bool:
        """Whether the input is the bottleneck of a run."""
        return self.steps.waiting > _BOTTLENECK

    @property
    def stage_seconds(self) -> float:
        """Estimated seconds of the whole stage, without evaluations and saves."""
        return (self.stage.stop - self.stage.start) * self.stage.tokens_per_step / self.slots_per_second


def bench(config: Config, make_rows: MakeRows, seconds: float) -> tuple[Machine, list[StageFigures]]:
    """Measure every stage of a recipe, each for about `seconds`; `make_rows` returns the batches of a stage.

    The config's model must have the vocabulary of the rows. Raises ValueError like `training_mesh`, and OutOfMemory.
    """
    mesh = training_mesh(config)
    device = mesh.devices.flat[0]
    dtype = config.execution.dtype
    machine = Machine(
        device.device_kind,
        device.platform,
        mesh.devices.size,
        matmul_peak(device, dtype),
        peak_flops(device.device_kind),
        matmul_peak(device, "bfloat16") if device.platform == "cpu" and dtype == "float32" else None,
    )
    teacher = assumed_teacher(config)
    config = decide_unrolling(config, mesh, teacher)
    programs = StepPrograms(config, mesh, make_optimizer(config.optimizer), teacher)
    config, _ = programs.fit()

    def measure(stage: Stage) -> StageFigures:
        return _bench_stage(config, programs, mesh, machine, stage, make_rows, seconds)

    with jax.set_mesh(mesh):
        return machine, [measure(stage) for stage in make_stages(config)]


def _bench_stage(
    config: Config,
    programs: StepPrograms,
    mesh: Mesh,
    machine: Machine,
    stage: Stage,
    make_rows: MakeRows,
    seconds: float,
) -> StageFigures:
    flops = stage_flops(config, stage, assumed_teacher(config))
    peak = machine.measured.flops * machine.devices
    affordable = seconds / _LEAST_STEPS * peak * _LIKELY_MFU / flops
    measured = shortened(stage, batch_shards(mesh), affordable)
    batches = make_rows(measured)
    with explain_exhausted_memory(f"measuring stage {stage.number}", config, mesh, measured):
        step, state, program = _compile_step(config, programs, measured)
        with _feed(batches, mesh, measured) as feed:
            input_alone = _time_input(feed, measured, seconds / 4)
        with _feed(batches, mesh, measured) as feed:
            steps = _time_steps(step, state, feed, mesh, measured, seconds)
    rate = steps.tokens / steps.mean * flops
    nominal_peak = machine.data_sheet_flops
    return StageFigures(
        stage,
        measured,
        steps,
        input_alone,
        replace(program, peak_bytes=(mesh.devices.flat[0].memory_stats() or {}).get("peak_bytes_in_use")),
        mfu(rate, peak),
        mfu(rate, nominal_peak * machine.devices) if nominal_peak else None,
    )


def shortened(stage: Stage, shards: int, tokens: float) -> Stage:
    """Return the stage with at most `tokens` per step: fewer microbatches of the same size, or a smaller one."""
    if stage.tokens_per_step <= tokens:
        return stage
    rows = max(int(tokens / stage.data.sequence_length), 1)
    at_a_time = stage.training.rows_at_a_time
    count = max(rows // at_a_time, 1)
    while at_a_time > rows and at_a_time % (2 * shards) == 0:
        at_a_time //= 2
    return replace(stage, training=replace(stage.training, global_batch_size=count * at_a_time, grad_accum_steps=count))


def _compile_step(config: Config, programs: StepPrograms, stage: Stage) -> tuple[TrainStep, TrainState, Program]:
    blueprint = programs.blueprint(config.execution)
    state = init_state(blueprint, config.model, make_optimizer(config.optimizer), config.training.seed)
    start = time.perf_counter()
    compiled: Any = programs.trace(config.execution, stage).lower().compile()
    seconds = time.perf_counter() - start
    step = replace(programs.step(config.execution, stage), program=compiled, frozen=_draw_frozen(blueprint))
    return step, state, Program(seconds, data_bytes(compiled.memory_analysis()), None)


def _draw_frozen(blueprint: Blueprint) -> Frozen:
    """Draw random weights for frozen networks; a step takes as long with them as with trained weights."""

    def draw(network: FrozenNetwork) -> Params:
        shardings = jax.tree.map(lambda leaf: leaf.sharding, network.params)
        return jax.jit(lambda: init_params(network.model, jax.random.key(0)), out_shardings=shardings)()

    return {name: draw(network) for name, network in blueprint.frozen.items()}


def _feed(batches: RunBatches, mesh: Mesh, stage: Stage) -> Feed:
    size = stage.training.global_batch_size
    return open_feed(
        batches, start_step=0, global_batch_size=size, rows=local_rows(mesh, size), threads=stage.data.threads
    )


def _time_input(feed: Feed, stage: Stage, seconds: float) -> Input:
    """Time batches for `seconds`, after discarding those that the feed has made ahead."""
    for _ in itertools.islice(feed, AHEAD + stage.data.threads):
        pass
    start, count = time.perf_counter(), 0
    while count < _LEAST_STEPS or time.perf_counter() - start < seconds:
        next(feed)
        count += 1
    rate = count / (time.perf_counter() - start)
    return Input(feed.engine, stage.data.threads, rate, rate * stage.training.global_batch_size)


def _time_steps(step: TrainStep, state: TrainState, feed: Feed, mesh: Mesh, stage: Stage, seconds: float) -> Steps:
    """Step like the training loop, with the host one step ahead of the device; time from end to end of each step."""
    in_flight: deque[jax.Array] = deque()
    ends, tokens, waited = [], [], 0.0

    def take() -> None:
        nonlocal state, waited
        start = time.perf_counter()
        local = next(feed)
        waited += time.perf_counter() - start
        state, metrics = step(state, to_global(mesh, local))
        in_flight.append(metrics["tokens"])

    def end() -> None:
        tokens.append(float(in_flight.popleft()))
        ends.append(time.perf_counter())

    for _ in range(_WARM_UP):
        take()
        end()
    waited = 0.0
    take()
    while len(ends) - _WARM_UP < _LEAST_STEPS or ends[-1] - ends[_WARM_UP - 1] < seconds:
        take()
        end()
    step_seconds = np.diff(ends[_WARM_UP - 1 :])
    share = waited / (ends[-1] - ends[_WARM_UP - 1])
    return Steps(tuple(step_seconds.tolist()), stage.tokens_per_step, float(np.mean(tokens[_WARM_UP:])), share)
