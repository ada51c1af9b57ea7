"""Choose microbatches and recomputation so that steps fit the devices: `training.grad_accum_steps=auto`.

Fewer microbatches are faster, and so is less recomputation. The first of these choices that fits is taken for all
`auto` stages together, because they share `execution.remat`:
1. The fewest microbatches of at least 4,096 tokens per device, with `execution.remat` as configured.
2. The same with `dots`, then with `full`.
3. Smaller microbatches with `full`.
4. The same as 3 with weights gathered by layer, on a mesh that splits weights (`execution.gather`).
The choice depends only on the config, the mesh, the device kind and its memory, so that the same run on the same
machine is the same program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import Mesh

from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig
from bertjax.parallel.mesh import batch_shards, row_parts
from bertjax.parallel.sharding import microbatch_counts
from bertjax.training.stages import Stage, check_stages_divisible, make_stages

AUTO = "auto"
REMAT: tuple[Literal["none", "dots", "full"], ...] = ("none", "dots", "full")  # least memory last
# Share of a device's memory that a step may take. The rest is for memory outside the program: on a CPU the process, its
# libraries and its batches, on a GPU the gaps between buffers.
USABLE = {"cpu": 0.75, "gpu": 0.92, "tpu": 0.97}
# Tokens per device and microbatch. With fewer, accumulating the gradients, whose size does not depend on the tokens,
# costs more than recomputing the cheap operations.
_ENOUGH_TOKENS = 4096
_VALUES_PER_TEMPORARY = 8.0  # all values take about this many times the bytes of the compiled step's temporaries

Bound = Callable[[ExecutionConfig, Stage], tuple[int, int]]  # bytes of a device: arguments, and all values of the step
Compiled = Callable[[ExecutionConfig, Stage], float]  # bytes that the compiled step takes on a device


class Fit(NamedTuple):
    """A config with a number of microbatches in every stage, and the reason as a line to print."""

    config: Config
    reason: str = ""  # empty if no stage was `auto`


def is_undecided(config: Config) -> bool:
    """Whether the number of microbatches of any stage is still `auto`."""
    return AUTO in (config.training.grad_accum_steps, *(stage.grad_accum_steps for stage in config.stages))


def usable_memory(platform: str, memory: float | None) -> float | None:
    """Bytes for a step on a device with `memory` bytes; None if that is unknown."""
    return None if memory is None else USABLE.get(platform, USABLE["gpu"]) * memory


def fit_to_memory(
    config: Config, mesh: Mesh, limit: float | None, bound: Bound, compiled: Compiled, only: int | None = None
) -> Fit:
    """Replace every `auto` number of microbatches, and raise `execution.remat` and `gather` as far as needed.

    `limit` is the bytes of a device; None means no limit. A step is compiled only if the sum of all its values, a bound
    that needs no compilation, exceeds the limit. If nothing fits, the choice that needs the least memory is taken, and
    `reason` is a warning. `only` restricts the search to the stage of this number. Raises ValueError as
    `check_stages_divisible` does.
    """
    stages = [stage for stage in make_stages(config) if stage.training.grad_accum_steps == AUTO]
    if only is not None:
        stages = [stage for stage in stages if stage.number == only]
    if not stages:
        return Fit(config)
    check_stages_divisible(config, mesh, stages)
    shards = batch_shards(mesh)
    if limit is None:
        numbers = {stage.number: 1 for stage in stages}
        return Fit(with_microbatches(config, numbers), _reason(numbers, {}, None, config.execution))

    # Bytes by rows per microbatch, shared by stages that differ only in their number of rows.
    measured: dict[tuple[ExecutionConfig, DataConfig, ModelConfig], dict[int, float]] = {}

    def search(execution: ExecutionConfig, stage: Stage, counts: Sequence[int]) -> tuple[int | None, dict[int, float]]:
        rows = stage.training.global_batch_size
        row_needs = measured.setdefault((execution, stage.data, stage.model), {})

        def at(count: int) -> Stage:
            return replace(stage, training=replace(stage.training, grad_accum_steps=count))

        def need(count: int) -> float:
            _, most = bound(execution, at(count))
            if most > limit:
                most = row_needs[rows // count] = compiled(execution, at(count))
            return most

        arguments, most = bound(execution, at(counts[0]))
        if most <= limit:
            return counts[0], {counts[0]: most}
        before = {rows / at_a_time: need for at_a_time, need in row_needs.items()}
        return fewest(counts, limit, need, arguments, (most - arguments) / _VALUES_PER_TEMPORARY, before)

    counts = {stage.number: list(microbatch_counts(stage.training, shards)) for stage in stages}
    devices = shards * row_parts(mesh)
    large = {stage.number: _counts_with_enough_tokens(stage, counts[stage.number], devices) for stage in stages}
    # Long rows are the first to need recomputation. Trying them first avoids compiling other stages in vain.
    longest_first = sorted(stages, key=lambda stage: -stage.data.sequence_length)
    execution, needs = config.execution, {}
    numbers: dict[int, int] = {}
    levels = [replace(execution, remat=remat) for remat in REMAT[REMAT.index(execution.remat) :]]
    if mesh.shape["fsdp"] > 1 and execution.gather == "step":
        levels.append(replace(levels[-1], gather="layer"))
    for execution in levels:
        numbers = {}
        for stage in longest_first:
            number, tried = search(execution, stage, large[stage.number])
            smaller = counts[stage.number][len(large[stage.number]) :]
            if number is None and smaller and execution.remat == REMAT[-1]:
                number, tried = search(execution, stage, smaller)
            if number is None:
                if execution != levels[-1]:
                    break  # the next level is for all stages
                number = counts[stage.number][-1]
            numbers[stage.number], needs[stage.number] = number, tried.get(number, math.inf)
        if len(numbers) == len(stages):
            break
    decided = replace(with_microbatches(config, numbers), execution=execution)
    return Fit(decided, _reason(numbers, needs, limit, execution))


def fewest(
    counts: Sequence[int],
    limit: float,
    need: Callable[[int], float],
    fixed: float,
    growing: float,
    prior: Mapping[float, float] | None = None,
) -> tuple[int | None, dict[int, float]]:
    """Find the fewest microbatches whose step fits; `counts` ascend. Returns (count, bytes of all counts tried).

    The count is None if not even the last one fits. `fixed + growing` is the expected need of the first count: bytes
    that do not depend on the microbatches, and bytes in proportion to their rows. Every measured need improves the
    expectation, as do `prior` needs of similar steps. With two or more needs known, a count is returned without trying
    the one before it if that one is not expected to fit.
    """
    prior = prior or {}
    growing *= counts[0]
    tried: dict[int, float] = {}
    low, high = 0, len(counts)  # those before `low` are too large, those from `high` on fit
    while low < high:
        expected = _expectation({**prior, **tried}, fixed, growing)
        likely = next((place for place in range(low, high) if expected(counts[place]) <= limit), None)
        if likely is None:
            if high < len(counts) and len({**prior, **tried}) > 1:
                break
            likely = high - 1
        tried[counts[likely]] = need(counts[likely])
        low, high = (low, likely) if tried[counts[likely]] <= limit else (likely + 1, high)
    return (counts[high] if high < len(counts) else None), tried


def _expectation(tried: Mapping[float, float], fixed: float, growing: float) -> Callable[[int], float]:
    """Predict the bytes of a count: linear in 1 / count, through the two nearest counts that were tried."""
    needs = {count: bytes for count, bytes in tried.items() if math.isfinite(bytes)}

    def expected(count: float) -> float:
        near = sorted(needs, key=lambda candidate: abs(math.log(candidate / count)))[:2]
        if not near:
            return fixed + growing / count
        if len(near) == 1:
            return fixed + max(needs[near[0]] - fixed, 0.0) * near[0] / count
        first, second = near
        slope = (needs[first] - needs[second]) / (1 / first - 1 / second)
        return needs[first] + slope * (1 / count - 1 / first)

    return expected


def with_microbatches(config: Config, numbers: Mapping[int, int]) -> Config:
    """Set the microbatches of stages by number. A stage with the count of the stage before it inherits it (None)."""
    if 0 in numbers:
        config = replace(config, training=replace(config.training, grad_accum_steps=numbers[0]))
    before, stages = config.training.grad_accum_steps, []
    for number, stage in enumerate(config.stages, 1):
        if number in numbers:
            own = None if numbers[number] == before else numbers[number]
            stage = replace(stage, grad_accum_steps=own)
        before = before if stage.grad_accum_steps is None else stage.grad_accum_steps
        stages.append(stage)
    return replace(config, stages=tuple(stages))


def values_bytes(traced: jax.stages.Traced) -> int:
    """Bytes of all values of a traced program if no buffer were reused: an upper bound of its temporaries.

    A loop's body counts once, and the outputs that it stacks count in full.
    """

    def jaxpr_bytes(jaxpr: Any) -> int:
        return sum(sum(map(_bytes, eqn.outvars)) + sum(map(jaxpr_bytes, _inner_jaxprs(eqn))) for eqn in jaxpr.eqns)

    return jaxpr_bytes(traced.jaxpr.jaxpr)


def _bytes(variable: Any) -> int:
    aval = variable.aval
    return aval.size * aval.dtype.itemsize if hasattr(aval, "dtype") else 0


def _inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs that an equation calls."""
    jaxprs = []
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            jaxpr = getattr(item, "jaxpr", item)  # unwraps a ClosedJaxpr
            if hasattr(jaxpr, "eqns"):
                jaxprs.append(jaxpr)
    return jaxprs


def _counts_with_enough_tokens(stage: Stage, counts: list[int], devices: int) -> list[int]:
    """The counts that leave each of `devices` enough tokens per microbatch; only the first count if none does."""
    tokens = stage.tokens_per_step / devices
    return [count for count in counts if tokens / count >= _ENOUGH_TOKENS] or counts[:1]


def _reason(
    numbers: Mapping[int, int], needs: Mapping[int, float], limit: float | None, execution: ExecutionConfig
) -> str:
    counts = ", then ".join(str(numbers[stage]) for stage in sorted(numbers))
    remat = "" if execution.remat == "none" else f" with execution.remat {execution.remat}"
    gather = "" if execution.gather == "step" else f" and execution.gather {execution.gather}"
    settings = f"gradient accumulation steps (auto): {counts}{remat}{gather}"
    if limit is None:
        return f"{settings}; the memory of a device is unknown"
    most, available = max(needs.values()), f"{limit / 2**30:,.2f} GiB"
    if most > limit:
        need = f"{most / 2**30:,.2f} GiB" if math.isfinite(most) else "more"
        return (
            f"Warning: {settings} need the least memory, but a step takes {need} and a device has only {available} for "
            "it; split the weights with --mesh.fsdp"
        )
    return f"{settings}; a step takes at most {most / 2**30:,.2f} GiB of {available} of a device"
