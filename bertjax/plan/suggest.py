"""The best plan that fits, over meshes, rematerialisation and microbatches: cut by estimate, decided by the compiler.

Every kind of mesh and rematerialisation is compiled first with the microbatches that should fit; the compiler's memory
for it says how many rows more or fewer there is room for, and that is compiled again. Fewest seconds of a step win.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bertjax.plan.changes import Change, as_it_is, meshes, microbatches, shards_of
from bertjax.plan.estimates import Plan, Say, StagePlan, mesh_on, plan_stage
from bertjax.plan.figures import gib, label, milliseconds

_MOST_COMPILATIONS = 8  # per stage
_NEAR = 0.97  # of a device's memory may be planned for: estimates from one compilation are this good


@dataclass(frozen=True)
class Choice:
    """What was chosen for one stage, out of how many that were compiled."""

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
            step = f"a step of at least {milliseconds(self.planned.bound.overlapped)} ms"
            if self.before.bound is not None and self.before.fits:
                step += f" (as it is: {milliseconds(self.before.bound.overlapped)})"
        used = f"{gib(self.planned.needed or 0)} GiB a device"
        flags = self.flags or "as the recipe has it"
        return (
            f"{label(self.before)}: best of {self.compiled} compiled: {flags}: {', '.join(filter(None, (step, used)))}"
        )


@dataclass(frozen=True)
class Suggestion:
    """The choice for each stage."""

    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """For the terminal."""
        return "\n".join(
            ["Suggested, each verified by compiling it:", *(f"  {choice.text}" for choice in self.choices)]
        )


def suggest(plan: Plan, say: Say) -> Suggestion:
    """Search for every stage of a plan by itself, on one mesh and rematerialisation for all: those of the first."""
    choices: list[Choice] = []
    shared: Change | None = None
    for stage in plan.stages:
        choice, change = _best(plan, stage, shared, say)
        choices.append(choice)
        # A run has one mesh, and one rematerialisation, in all its stages; microbatches are each stage's own.
        shared = shared or change
    return Suggestion(tuple(choices))


def _best(plan: Plan, stage: StagePlan, shared: Change | None, say: Say) -> tuple[Choice, Change | None]:
    tried: list[tuple[Change, StagePlan]] = []
    for start in _starts(plan, stage, shared):
        change: Change | None = start
        while change is not None and len(tried) < _MOST_COMPILATIONS and change not in [one for one, _ in tried]:
            say(f"trying {change.flags(stage.config, stage.stage) or 'the recipe as it is'}")
            planned = _compiled(plan, stage, change)
            tried.append((change, planned))
            change = _next(plan, planned, change)
    fitting = [(change, planned) for change, planned in tried if planned.fits]
    if not fitting:
        return Choice(stage, None, "", len(tried)), None
    change, planned = min(fitting, key=lambda one: _cost(one[1]))
    return Choice(stage, planned, change.flags(stage.config, stage.stage), len(tried)), change


def _starts(plan: Plan, stage: StagePlan, shared: Change | None) -> list[Change]:
    """One per mesh and rematerialisation worth a try, with as many microbatches as the recipe has, or the fewest."""
    now = as_it_is(stage.config, stage.stage)
    if shared is not None:
        return [replace(shared, grad_accum_steps=now.grad_accum_steps)]
    devices, slices = len(plan.topology.devices), len(set(plan.topology.slices))
    wide = list(meshes(stage.config, devices, slices))
    kinds = [(mesh, remat) for mesh in wide[:1] + wide[1:4:2] for remat in ("none", "dots")]
    return [Change(mesh, remat, now.grad_accum_steps) for mesh, remat in kinds]


def _compiled(plan: Plan, stage: StagePlan, change: Change) -> StagePlan:
    config, changed = change.applied(stage.config, stage.stage)
    counted = stage.counted_flops if change.remat == stage.config.model.remat else None
    return plan_stage(config, changed, plan.topology, mesh_on(config, plan.topology), counted)


def _next(plan: Plan, planned: StagePlan, change: Change) -> Change | None:
    """The same with the number of microbatches that the memory of a compiled one speaks for."""
    if planned.needed is None or planned.capacity is None:
        return None
    shards = shards_of(planned.config.mesh, len(plan.topology.devices))
    possible = list(microbatches(planned.stage, shards))
    if planned.fits:
        m = planned.result.memory
        fixed = m.total - m.temporaries
        room = max(1.0, (_NEAR * planned.capacity - fixed) / max(1, m.temporaries))
        better = [n for n in possible if change.grad_accum_steps / room <= n < change.grad_accum_steps]
        return replace(change, grad_accum_steps=better[0]) if better else None
    fixed = planned.result.arguments if hasattr(planned.result, "arguments") else 0
    room = max(1.0, _NEAR * planned.capacity - fixed)
    wanted = change.grad_accum_steps * max(1.0, planned.needed - fixed) / room
    fewer = [n for n in possible if n >= wanted and n > change.grad_accum_steps]
    return replace(change, grad_accum_steps=fewer[0]) if fewer else None


def _cost(planned: StagePlan) -> tuple[float, int]:
    """Seconds of a step; where they are unknown, fewer microbatches are better."""
    seconds = planned.bound.overlapped if planned.bound else 0.0
    return seconds, planned.stage.training.grad_accum_steps
