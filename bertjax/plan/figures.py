"""The tables of a plan, shared by the terminal and the page."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from bertjax.parallel.mesh import row_parts
from bertjax.plan.collectives import Collective
from bertjax.plan.compiling import Program
from bertjax.plan.estimates import HOUR, Plan, StagePlan
from bertjax.plan.topologies import GIB
from bertjax.report.page import Table, text_lines
from bertjax.run.progress import LONG_RUN_HOURS, duration

SMALL = 1 << 20  # smaller collectives share one row
_UNKNOWN = "–"
_LEAST_SHARE = 0.005  # of an estimate, to be mentioned
_LEAST_SECONDS = 10.0  # shorter times are shown in milliseconds


def tables(plan: Plan) -> tuple[Table, ...]:
    """All tables: memory, speed, cost, communication."""
    return (
        memory_table(plan),
        speed_table(plan),
        cost_table(plan),
        *(collectives_table(stage) for stage in plan.stages if stage.collectives),
    )


def memory_table(plan: Plan) -> Table:
    """Tabulate the memory of one device, from the compiler."""
    chip = plan.topology.chip
    device = "a chip" if not chip or chip.cores_of_a_chip == 1 else "a device (half a chip)"
    rows = []
    for stage in plan.stages:
        if isinstance(stage.result, Program):
            m = stage.result.memory
            parts = (m.parameters, m.optimizer, m.batch + m.other, m.results + m.temporaries, m.program)
            cells = tuple(gib(part) for part in parts)
        else:
            cells = (_UNKNOWN,) * 5
        needed = _UNKNOWN if stage.needed is None else gib(stage.needed)
        limit = "no limit known" if stage.capacity is None else gib(stage.capacity)
        rows.append((label(stage), *cells, needed, limit, verdict(stage)))
    return Table(
        f"Memory of {device}",
        "GiB, by the compiler; activations include gradients and all other temporaries",
        ("stage", "parameters", "optimizer", "batch", "activations", "program", "total", "capacity", "verdict"),
        tuple(rows),
    )


def speed_table(plan: Plan) -> Table:
    """Tabulate the roofline of each stage's step."""
    rows = []
    for stage in plan.stages:
        counted = stage.counted_flops
        flops = (f"{stage.flops / 1e12:,.1f}", f"{counted / 1e12:,.1f}")
        if stage.bound is None:
            rows.append((label(stage), *flops, *(_UNKNOWN,) * 8))
            continue
        b = stage.bound
        parts = (b.compute, b.memory, b.interconnect, b.network)
        rows.append(
            (
                label(stage),
                *flops,
                *(_time_cell(part) for part in parts),
                f"{_time_cell(b.overlapped)} to {_time_cell(b.serial)}",
                b.limited_by,
                f"{stage.mfu_bound:.1%}",
                _estimate_cell(stage),
            )
        )
    return Table(
        "A step at best",
        "TFLOP of the whole step by our formula and by the compiler for the unrolled step (the larger counts); then "
        "the time of each part alone at full rate, in ms unless a unit is given; a step takes as long as the longest "
        f"part if all overlap, up to the second figure if communication does not overlap. {_estimate_note(plan)}",
        (
            *("stage", "TFLOP", "compiled", "compute", "memory", "links", "network", "step", "limit", "MFU at most"),
            "estimate",
        ),
        tuple(rows),
    )


def _estimate_cell(stage: StagePlan) -> str:
    """Format the estimated time of a step and its MFU."""
    if stage.estimate is None or stage.mfu_estimate is None:
        return _UNKNOWN
    return f"{_time_cell(stage.estimate)}, {stage.mfu_estimate:.1%}"


def _estimate_note(plan: Plan) -> str:
    """Explain how the estimate is made."""
    scheduled = [stage.scheduled for stage in plan.stages if stage.scheduled is not None]
    if not scheduled:
        return "No estimate: this machine's compiler writes no schedule"
    modelled = sum(one.modelled for one in scheduled) / sum(one.seconds for one in scheduled)
    partly = f", {modelled:.0%} of it by the compiler's cost model" if modelled >= _LEAST_SHARE else ""
    return (
        "The estimate is the compiler's own schedule: the sum over the program's instructions of the longer of their "
        f"cycles and their bytes{partly}, and communication in series"
    )


def cost_table(plan: Plan) -> Table:
    """Tabulate time, chip-hours and cost of each stage and of all."""
    rows = [_cost_row(label(stage), stage.steps, stage.hours, plan) for stage in plan.stages]
    if plan.stages[1:]:
        rows.append(_cost_row("all", sum(stage.steps for stage in plan.stages), plan.hours, plan))
    chips = f"{plan.topology.chips:,.0f} chip{'' if plan.topology.chips == 1 else 's'}"
    price = "" if plan.price is None else f", at {plan.price:,.2f} a chip-hour"
    return Table(
        "The whole recipe" if plan.is_whole else f"{label(plan.stages[0]).capitalize()} of the recipe",
        f"{chips}{price}; at best, and if nothing overlaps; without evaluation, saving, start-up or restarts",
        ("stage", "steps", "hours", "chip-hours", "cost"),
        tuple(rows),
    )


def _cost_row(name: str, steps: int, hours: tuple[float, float] | None, plan: Plan) -> tuple[str, ...]:
    if hours is None:
        return (name, f"{steps:,}", _UNKNOWN, _UNKNOWN, _UNKNOWN)
    chip_hours = [hour * plan.topology.chips for hour in hours]
    cost = _UNKNOWN if plan.price is None else _span([hour * plan.price for hour in chip_hours], "{:,.0f}")
    return (name, f"{steps:,}", _span(hours, "{:,.1f}"), _span(chip_hours, "{:,.0f}"), cost)


def collectives_table(stage: StagePlan) -> Table:
    """Tabulate the collectives of a step: large ones by kind and axes, the rest together."""
    groups: dict[tuple, list[Collective]] = {}
    for one in stage.collectives:
        key = (one.kind, one.axes, one.slices > 1, one.times) if one.payload >= SMALL else ()
        groups.setdefault(key, []).append(one)
    rows = []
    for key, members in sorted(groups.items(), key=lambda item: -sum(one.payload * one.times for one in item[1])):
        runs, payload = sum(one.times for one in members), sum(one.payload * one.times for one in members)
        moved = sum(one.moved * one.times for one in members)
        if key:
            kind, axes, crosses, _ = key
            cells = (kind, " × ".join(axes), "yes" if crosses else "no")
        else:
            crossing = sum(one.times for one in members if one.slices > 1)
            cells = ("each below 1 MiB", _UNKNOWN, f"{crossing} of them" if crossing else "no")
        rows.append((*cells, f"{runs:,}", mb(payload), mb(moved)))
    return Table(
        f"Communication between devices in a step of {label(stage)}",
        "MB: the reduced or gathered arrays, and the least that each device sends for them",
        ("what", "mesh axes", "between slices", "times", "arrays", "sent"),
        tuple(rows),
    )


def headline(plan: Plan) -> str:
    """Return the result in one sentence."""
    name = plan.config.name if plan.is_whole else f"{label(plan.stages[0])} of {plan.config.name}"
    if not plan.fits:
        first = next(stage for stage in plan.stages if not stage.fits)
        needed = "more" if first.needed is None else f"{gib(first.needed)} GiB"
        return (
            f"{name} does not fit {plan.topology.name}: {label(first)} needs {needed} a device, "
            f"which has {gib(first.capacity or 0)}"
        )
    whole = f"{name} fits {plan.topology.name}"
    if not any(stage.capacity for stage in plan.stages):
        most = max((stage.needed or 0 for stage in plan.stages), default=0)
        needs = f"needs {gib(most)} GiB a device of" if most else "compiles for"
        whole = f"{name} {needs} {plan.topology.name}, whose memory limit is not known,"
    if plan.hours is None:
        return whole.rstrip(",")
    chip_hours = plan.hours[0] * plan.topology.chips
    cost = "" if plan.price is None else f", at a cost of {_amount(chip_hours * plan.price)}"
    hours = f"{plan.hours[0]:,.1f} hours" if plan.hours[0] >= 1 else duration(HOUR * plan.hours[0])
    if plan.hours[0] >= LONG_RUN_HOURS:
        hours = f"{plan.hours[0]:,.0f} hours ({duration(HOUR * plan.hours[0])})"
    by_schedule = ""
    if plan.estimated_hours is not None:
        by_schedule = f"; by the compiler's schedule {plan.estimated_hours:,.1f} hours"
    return f"{whole} and takes at least {hours}, {_amount(chip_hours)} chip-hours{cost}{by_schedule}"


def _amount(value: float) -> str:
    """A number, with two digits after the point if it is below 10."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def describe_mesh(plan: Plan) -> str:
    """Describe the mesh, and the measured speed of its devices, if any."""
    mesh = plan.stages[0].mesh
    axes = " ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    slices = len(set(plan.topology.slices))
    across = f", {slices} slices" if slices > 1 else ""
    chip = plan.topology.chip
    speed = f", each of {chip.measured}; memory and links are left out" if chip and chip.measured else ""
    return f"mesh {axes} of {mesh.devices.flat[0].device_kind} ({mesh.devices.size} devices{across}{speed})"


def label(stage: StagePlan) -> str:
    """Name a stage by its number, from 1."""
    return f"stage {stage.stage.number + 1}"


def describe_stage(stage: StagePlan) -> str:
    """Describe the rows of a stage and how they are divided."""
    training = stage.stage.training
    times = f", in {training.microbatches} microbatches" if training.microbatches > 1 else ""
    sharing = stage.mesh.shape["tensor"] * row_parts(stage.mesh)
    place = "a device" if sharing == 1 else f"on {sharing} devices"
    return (
        f"{label(stage)}: {stage.steps:,} steps of {training.global_batch_size:,} rows of "
        f"{stage.stage.data.sequence_length} tokens, {stage.rows_of_a_device} {place} at a time{times}"
    )


def verdict(stage: StagePlan) -> str:
    """Return whether the stage fits, in words."""
    if stage.capacity is None:
        return _UNKNOWN
    return "fits" if stage.fits else "TOO LARGE"


def gib(size: float) -> str:
    """Format bytes in GiB."""
    return f"{size / GIB:,.2f}"


def mb(size: float) -> str:
    """Format bytes in MB."""
    return f"{size / 1e6:,.1f}"


def milliseconds(seconds: float) -> str:
    """Format milliseconds with three digits."""
    value = 1e3 * seconds
    return "0" if value == 0 else f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def step_time(seconds: float) -> str:
    """Format a step time: in ms below ten seconds, else in s."""
    return f"{seconds:,.1f} s" if seconds >= _LEAST_SECONDS else f"{milliseconds(seconds)} ms"


def _time_cell(seconds: float) -> str:
    return step_time(seconds).removesuffix(" ms")


def _span(values: Sequence[float], form: str) -> str:
    low, high = (form.format(value) for value in values)
    return low if low == high else f"{low} to {high}"


def as_text(table: Table) -> str:
    """Format a table in columns; words and mesh axes left-aligned, figures right-aligned."""
    left = {0} | ({1} if "axes" in table.columns[1] else set())
    return "\n".join([table.title, *textwrap.wrap(f"({table.note})", 118), *text_lines(table, left)])
