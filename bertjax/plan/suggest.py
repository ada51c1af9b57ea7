"""The best plan that fits, over meshes, rematerialisation and microbatches: cut by estimate, decided by the compiler.

Every kind of mesh and rematerialisation is compiled first with the microbatches that should fit; the compiler's memory
for it says how many rows more or fewer there is room for, and that is compiled again. Fewest seconds of a step win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertjax.config import MeshConfig
from bertjax.plan.advice import Change, as_it_is, flags_for, meshes, microbatches, shards_of
from bertjax.plan.compiling import TooLarge, argument_sizes
from bertjax.plan.estimates import Plan, Say, StagePlan, mesh_on, plan_stage
from bertjax.plan.figures import gib, label, step_time

_MOST_COMPILATIONS = 8  # per stage
_NEAR = 0.97  # usable share of a device's memory, given the error of estimates from one compilation


@dataclass(frozen=True)
class Choice:
    """The choice for one stage, and how many plans were compiled for it."""

    before: StagePlan
    planned: StagePlan | None
    flags: str
    compiled: int

    @property
    def text(self) -> str:
        """One line."""
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
    """The choice for each stage."""

    choices: tuple[Choice, ...]

    @property
    def is_whole(self) -> bool:
        """Whether there is a plan that fits for every stage."""
        return all(choice.planned is not None for choice in self.choices)

    @property
    def text(self) -> str:
        """For the terminal."""
        return "\n".join(
            ["Suggested, each verified by compiling it:", *(f"  {choice.text}" for choice in self.choices)]
        )


def suggest(plan: Plan, say: Say) -> Suggestion:
    """Search each stage; the mesh and rematerialisation chosen for the first stage hold for all."""
    choices: list[Choice] = []
    shared: Change | None = None
    for stage in plan.stages:
        starts = _starts(plan, stage) if shared is None else [_with_own_microbatches(shared, stage)]
        choice, change = _best(plan, stage, starts, say)
        choices.append(choice)
        # A run has one mesh, and one rematerialisation, in all its stages; microbatches are each stage's own.
        shared = shared or change
    return Suggestion(tuple(choices))


def pick_microbatches(plan: Plan, say: Say) -> Suggestion:
    """The fewest microbatches of each stage that fit this machine, with the recipe otherwise unchanged."""
    return Suggestion(tuple(_best(plan, stage, [as_it_is(stage.config, stage.stage)], say)[0] for stage in plan.stages))


def _best(plan: Plan, stage: StagePlan, starts: list[Change], say: Say) -> tuple[Choice, Change | None]:
    """Compile from each start on, while the memory of a plan points to a better one."""
    tried: dict[Change, StagePlan] = {as_it_is(stage.config, stage.stage): stage}
    for start in starts:
        change: Change | None = start
        seen: set[Change] = set()
        while change is not None and change not in seen and len(tried) < _MOST_COMPILATIONS:
            seen.add(change)
            if change not in tried:
                say(f"trying {flags_for(plan, stage, change) or 'the given settings'}")
                tried[change] = _compiled(plan, stage, change)
            change = _next(plan, tried[change], change)
    allowed = _allowed(starts, tried)
    fitting = [(change, planned) for change, planned in tried.items() if planned.fits and change in allowed]
    if not fitting:
        return Choice(stage, None, "", len(tried)), None
    change, planned = min(fitting, key=lambda one: _cost(one[1]))
    return Choice(stage, planned, flags_for(plan, stage, change), len(tried)), change


def _allowed(starts: list[Change], tried: dict[Change, StagePlan]) -> set[Change]:
    """Those that lie on a start's mesh and rematerialisation: a later stage has to keep the first one's."""
    kinds = {(start.mesh, start.remat) for start in starts}
    return {change for change in tried if (change.mesh, change.remat) in kinds}


def _starts(plan: Plan, stage: StagePlan) -> list[Change]:
    """The given settings, then one per mesh and rematerialisation worth a try, with as many microbatches.

    `full` recomputes a third of all and only saves what `dots` keeps, so that it is left to advice.
    """
    now = as_it_is(stage.config, stage.stage)
    kinds = [(mesh, remat) for mesh in _widths(plan, stage) for remat in ("none", "dots")]
    return list(dict.fromkeys([now, *(Change(mesh, remat, now.grad_accum_steps) for mesh, remat in kinds)]))


def _widths(plan: Plan, stage: StagePlan) -> list[MeshConfig]:
    """The least fsdp with which parameters and moments fit, for whole copies cost the least time; twice that; the most.

    Nothing is compiled for it.
    """
    devices, slices = len(plan.topology.devices), len(set(plan.topology.slices))

    def holds(mesh: MeshConfig) -> bool:
        config = replace(stage.config, mesh=mesh)
        sizes = argument_sizes(config, stage.stage, mesh_on(config, plan.topology))
        return plan.topology.capacity is None or sum(sizes) <= plan.topology.capacity

    wide = list(meshes(stage.config, devices, slices))
    least = next((number for number, mesh in enumerate(wide) if holds(mesh)), len(wide))
    wide = wide[least:]
    return list(dict.fromkeys(wide[:2] + wide[-1:]))


def _with_own_microbatches(shared: Change, stage: StagePlan) -> Change:
    return replace(shared, grad_accum_steps=stage.stage.training.grad_accum_steps)


def _compiled(plan: Plan, stage: StagePlan, change: Change) -> StagePlan:
    config, changed = change.applied(stage.config, stage.stage)
    counted = stage.counted_flops if change.remat == stage.config.execution.remat else None
    return plan_stage(config, changed, plan.topology, mesh_on(config, plan.topology), counted)


def _next(plan: Plan, planned: StagePlan, change: Change) -> Change | None:
    """The same plan with the number of microbatches that fits by the memory of the compiled one."""
    if planned.needed is None or planned.capacity is None:
        return None
    possible = list(microbatches(planned.stage, shards_of(planned.config.mesh, len(plan.topology.devices))))
    now = change.grad_accum_steps
    fixed = fixed_bytes(planned)
    # What grows with the rows of a microbatch, and what it may grow to.
    ratio = max(1.0, planned.needed - fixed) / max(1.0, _NEAR * planned.capacity - fixed)
    fitting = [count for count in possible if count >= now * ratio]
    better = [count for count in fitting if (count < now if planned.fits else count > now)]
    return replace(change, grad_accum_steps=better[0]) if better else None


def fixed_bytes(planned: StagePlan) -> int:
    """Bytes of a device that more microbatches do not change: parameters and moments, gradients, the program."""
    if isinstance(planned.result, TooLarge):
        return planned.result.arguments
    m = planned.result.memory
    return m.total - m.temporaries


def _cost(planned: StagePlan) -> tuple[float, int]:
    """Seconds of a step; where they are unknown, fewer microbatches are better."""
    seconds = planned.bound.overlapped if planned.bound else 0.0
    return seconds, planned.stage.training.grad_accum_steps
