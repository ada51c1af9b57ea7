"""Search meshes, rematerialisation and microbatches for the fastest plan that fits.

Every mesh and rematerialisation is compiled with the microbatches that should fit; the compiler's memory then gives a
better number, which is compiled again. The fastest step wins. If nothing fits, weights are gathered by layer. If there
are too few rows, devices share a row's heads (`tensor`) or tokens (`length`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertjax.config import MeshConfig
from bertjax.parallel.sharding import microbatch_counts
from bertjax.plan.advice import (
    Change,
    count_shards,
    current_settings,
    flags_for,
    gathered_by_layer,
    meshes,
    plan_change,
)
from bertjax.plan.compiling import TooLarge, argument_sizes
from bertjax.plan.estimates import Plan, Say, StagePlan, mesh_on
from bertjax.plan.figures import gib, label, step_time
from bertjax.training.stages import rows_can_be_split

_MOST_COMPILATIONS = 8  # per stage
_NEAR = 0.97  # usable share of a device's memory, given the error of estimates from one compilation


@dataclass(frozen=True)
class Choice:
    """The best change for one stage, and the number of compiled plans."""

    before: StagePlan
    planned: StagePlan | None
    flags: str
    compiled: int

    @property
    def text(self) -> str:
        """Text of one line."""
        if self.planned is None:
            return f"{label(self.before)}: none of {self.compiled} plans fits; take more devices or --mesh.tensor"
        step = ""
        if self.planned.bound is not None:
            step = f"a step of at least {step_time(self.planned.bound.overlapped)}"
            if self.before.bound is not None and self.before.fits:
                step += f" (as it is: {step_time(self.before.bound.overlapped)})"
        used = f"{gib(self.planned.needed or 0)} GiB a device"
        flags = self.flags or "as it is"
        return (
            f"{label(self.before)}: best of {self.compiled} compiled: {flags}: {', '.join(filter(None, (step, used)))}"
        )


@dataclass(frozen=True)
class Suggestion:
    """The best change for each stage."""

    choices: tuple[Choice, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every stage has a plan that fits."""
        return all(choice.planned is not None for choice in self.choices)

    @property
    def text(self) -> str:
        """Text for the terminal."""
        return "\n".join(
            ["Suggested, each verified by compiling it:", *(f"  {choice.text}" for choice in self.choices)]
        )


def suggest(plan: Plan, say: Say) -> Suggestion:
    """Search each stage. The mesh and rematerialisation of the first stage apply to all stages."""
    choices: list[Choice] = []
    shared: Change | None = None
    for stage in plan.stages:
        if shared is None:
            starts = _starts(plan, stage)
        else:
            starts = [replace(shared, grad_accum_steps=stage.stage.training.microbatches)]
        choice, change = _best(plan, stage, starts, say)
        if change is None and shared is None and (starts := _last_resorts(plan, stage)):
            last, change = _best(plan, stage, starts, say)
            choice = replace(last, compiled=choice.compiled + last.compiled - 1)  # both count the current settings
        choices.append(choice)
        # A run has one mesh and one rematerialisation; only microbatches differ between stages.
        shared = shared or change
    return Suggestion(tuple(choices))


def pick_microbatches(plan: Plan, say: Say) -> Suggestion:
    """Find the fewest microbatches of each stage that fit this machine, with the recipe otherwise unchanged."""
    return Suggestion(
        tuple(_best(plan, stage, [current_settings(stage.config, stage.stage)], say)[0] for stage in plan.stages)
    )


def _best(plan: Plan, stage: StagePlan, starts: list[Change], say: Say) -> tuple[Choice, Change | None]:
    """Compile each start, then the next change as long as the memory of a plan suggests a better one."""
    tried: dict[Change, StagePlan] = {current_settings(stage.config, stage.stage): stage}
    for start in starts:
        change: Change | None = start
        seen: set[Change] = set()
        while change is not None and change not in seen and len(tried) < _MOST_COMPILATIONS:
            seen.add(change)
            if change not in tried:
                say(f"trying {flags_for(plan, stage, change) or 'the given settings'}")
                tried[change] = plan_change(plan, stage, change)
            change = _next(plan, tried[change], change)
    allowed = _allowed_changes(starts, tried)
    fitting = [(change, planned) for change, planned in tried.items() if planned.fits and change in allowed]
    if not fitting:
        return Choice(stage, None, "", len(tried)), None
    change, planned = min(fitting, key=lambda one: _cost(one[1]))
    return Choice(stage, planned, flags_for(plan, stage, change), len(tried)), change


def _allowed_changes(starts: list[Change], tried: dict[Change, StagePlan]) -> set[Change]:
    """Return the changes that differ from a start in microbatches only: later stages must keep the first stage's."""
    kinds = {replace(start, grad_accum_steps=0) for start in starts}
    return {change for change in tried if replace(change, grad_accum_steps=0) in kinds}


def _starts(plan: Plan, stage: StagePlan) -> list[Change]:
    """Return the current settings, then one change for each mesh and rematerialisation worth trying.

    `full` recomputes a third of everything to save only what `dots` keeps, so it is left to `advise`.
    """
    now = current_settings(stage.config, stage.stage)
    kinds = [(mesh, remat) for mesh in _candidate_meshes(plan, stage) for remat in ("none", "dots")]
    return list(dict.fromkeys([now, *(replace(now, mesh=mesh, remat=remat) for mesh, remat in kinds)]))


def _last_resorts(plan: Plan, stage: StagePlan) -> list[Change]:
    """Return the change with the least memory on each candidate mesh, if any splits weights."""
    now = current_settings(stage.config, stage.stage)
    wide = [mesh for mesh in _candidate_meshes(plan, stage) if mesh.fsdp > 1]
    return [change for mesh in wide[-1:] for change in gathered_by_layer(now, [mesh])]


def _candidate_meshes(plan: Plan, stage: StagePlan) -> list[MeshConfig]:
    """Return meshes with the least fsdp that holds parameters and moments, twice that, and the most.

    Replicated weights are fastest, so small fsdp comes first. A mesh whose devices share rows is followed by its twin
    that splits tokens instead of heads. Nothing is compiled.
    """
    devices, slices = len(plan.topology.devices), len(set(plan.topology.slices))

    def holds(mesh: MeshConfig) -> bool:
        config = replace(stage.config, mesh=mesh)
        sizes = argument_sizes(config, stage.stage, mesh_on(config, plan.topology))
        return plan.topology.capacity is None or sum(sizes) <= plan.topology.capacity

    wide = list(meshes(stage.config, devices, slices))
    least = next((number for number, mesh in enumerate(wide) if holds(mesh)), len(wide))
    wide = wide[least:]
    narrow = list(dict.fromkeys(wide[:2] + wide[-1:]))
    return [mesh for one in narrow for mesh in (one, *_with_split_rows(plan, stage, one))]


def _with_split_rows(plan: Plan, stage: StagePlan, mesh: MeshConfig) -> list[MeshConfig]:
    """Return the mesh with `length` in place of `tensor`, if it has `tensor` and every stage's rows can be split."""
    if mesh.tensor == 1 or mesh.length > 1:
        return []
    split = replace(mesh, tensor=1, length=mesh.tensor)
    return [split] if rows_can_be_split(plan.recipe, mesh_on(replace(plan.recipe, mesh=split), plan.topology)) else []


def _next(plan: Plan, planned: StagePlan, change: Change) -> Change | None:
    """Return the change with the number of microbatches that should fit, by the compiled plan's memory."""
    if planned.needed is None or planned.capacity is None:
        return None
    shards = count_shards(planned.config.mesh, len(plan.topology.devices))
    possible = list(microbatch_counts(planned.stage.training, shards))
    now = change.grad_accum_steps
    fixed = fixed_bytes(planned)
    # Ratio of the bytes that grow with the rows of a microbatch to the room for them.
    ratio = max(1.0, planned.needed - fixed) / max(1.0, _NEAR * planned.capacity - fixed)
    fitting = [count for count in possible if count >= now * ratio]
    better = [count for count in fitting if (count < now if planned.fits else count > now)]
    return replace(change, grad_accum_steps=better[0]) if better else None


def fixed_bytes(planned: StagePlan) -> int:
    """Return the bytes per device that microbatches do not change: parameters, moments, gradients, the program."""
    if isinstance(planned.result, TooLarge):
        return planned.result.arguments
    m = planned.result.memory
    return m.total - m.temporaries


def _cost(planned: StagePlan) -> tuple[float, int]:
    """Sort key: seconds of a step, then the number of microbatches."""
    seconds = planned.bound.overlapped if planned.bound else 0.0
    return seconds, planned.stage.training.microbatches
