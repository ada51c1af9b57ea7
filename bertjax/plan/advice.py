"""Find changes that make a recipe fit, single ones first, each tried with the compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bertjax.config import Config, MeshConfig
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import accumulation_key, microbatch_counts
from bertjax.plan.estimates import Plan, Say, StagePlan, mesh_on, plan_stage
from bertjax.plan.figures import gib, label, step_time
from bertjax.training.memory_fit import REMAT
from bertjax.training.stages import Stage, make_stages, sharded_widths


@dataclass(frozen=True)
class Change:
    """The settings that decide how a stage is laid out on a machine."""

    mesh: MeshConfig
    remat: str
    grad_accum_steps: int
    gather: str = "step"

    def applied(self, config: Config, stage: Stage) -> tuple[Config, Stage]:
        """Return a config and a stage with these settings."""
        execution = replace(config.execution, remat=self.remat, gather=self.gather)
        training = replace(stage.training, grad_accum_steps=self.grad_accum_steps)
        return replace(config, mesh=self.mesh, execution=execution), replace(stage, training=training)

    def flags(self, config: Config, stage: Stage) -> str:
        """Return the command-line flags for the settings that differ from a config's."""
        flags = []
        for axis in ("data", "fsdp", "tensor", "length", "dcn_data", "dcn_fsdp"):
            value = getattr(self.mesh, axis)
            if value != getattr(config.mesh, axis):
                flags.append(f"--mesh.{axis.replace('_', '-')} {value}")
        if self.remat != config.execution.remat:
            flags.append(f"--execution.remat {self.remat}")
        if self.gather != config.execution.gather:
            flags.append(f"--execution.gather {self.gather}")
        if self.grad_accum_steps != stage.training.grad_accum_steps:  # `auto` differs from every number
            flags.append(f"{accumulation_key(stage.number)} {self.grad_accum_steps}")
        return " ".join(flags)


def flags_for(plan: Plan, stage: StagePlan, change: Change) -> str:
    """Return the flags that add a change to the planned command line."""
    # An unchanged mesh keeps the user's own flags.
    recipe = replace(plan.recipe, mesh=change.mesh) if change.mesh == plan.config.mesh else plan.recipe
    return change.flags(recipe, make_stages(plan.recipe)[stage.stage.number])


def current_settings(config: Config, stage: Stage) -> Change:
    """Return the settings of a config."""
    return Change(config.mesh, config.execution.remat, stage.training.microbatches, config.execution.gather)


def plan_change(plan: Plan, stage: StagePlan, change: Change) -> StagePlan:
    """Compile a stage with a change and estimate its memory and time."""
    config, changed = change.applied(stage.config, stage.stage)
    # Microbatches do not change the count of a step's FLOPs, rematerialisation does.
    counted = stage.counted_flops if change.remat == stage.config.execution.remat else None
    return plan_stage(config, changed, plan.topology, mesh_on(config, plan.topology), counted)


def meshes(config: Config, devices: int, slices: int) -> Iterator[MeshConfig]:
    """Yield meshes over data and fsdp with the config's other axes, fully replicated weights first.

    fsdp stays within a slice: gathering weights over the network every step costs more than it saves.
    """
    slice_shards = count_shards(config.mesh, devices) // slices
    divided = (slice_shards, *sharded_widths(config.model))
    for fsdp in (n for n in range(1, slice_shards + 1) if not any(size % n for size in divided)):
        if fsdp & (fsdp - 1) == 0:
            yield replace(config.mesh, data=-1, fsdp=fsdp, dcn_data=-1, dcn_fsdp=1)


def gathered_by_layer(change: Change, wider: list[MeshConfig]) -> Iterator[Change]:
    """Yield the change with the least memory: weights split most widely, gathered by layer, and full recomputation."""
    mesh = wider[-1] if wider else change.mesh
    if mesh.fsdp > 1 and change.gather == "step":
        yield replace(change, mesh=mesh, remat="full", gather="layer")


def count_shards(mesh: MeshConfig, devices: int) -> int:
    """Return the number of shards into which a mesh splits a batch."""
    assert len(BATCH_AXES) == 2, "a batch is split over data and fsdp"
    return devices // (mesh.tensor * mesh.length)


_MOST_TRIES = 8  # compilations per stage


@dataclass(frozen=True)
class Remedy:
    """A change, and the plan of the stage with it."""

    flags: str
    planned: StagePlan


@dataclass(frozen=True)
class Advice:
    """For each stage that does not fit, the changes that make it fit, best first."""

    remedies: tuple[tuple[StagePlan, tuple[Remedy, ...]], ...]

    @property
    def text(self) -> str:
        """Text for the terminal."""
        lines = []
        for stage, remedies in self.remedies:
            if not remedies:
                lines.append(
                    f"No compiled change makes {label(stage)} fit; use more devices, a smaller global batch or "
                    "--mesh.tensor."
                )
                continue
            lines.append(f"Changes that make {label(stage)} fit, each compiled:")
            lines += [f"  {remedy.flags:<60} {_summarise(remedy.planned)}" for remedy in remedies]
        return "\n".join(lines)


def advise(plan: Plan, say: Say) -> Advice:
    """Try changes to every stage that does not fit."""
    return Advice(tuple((stage, _remedies(plan, stage, say)) for stage in plan.stages if not stage.fits))


def _remedies(plan: Plan, stage: StagePlan, say: Say) -> tuple[Remedy, ...]:
    """Return the first fitting change of each kind: microbatches, rematerialisation, fsdp; then all three together.

    Weights are gathered by layer only where nothing else fits.
    """
    remedies: list[Remedy] = []
    tries = _MOST_TRIES
    for kind in _kinds(plan, stage):
        if remedies and any(change.gather != stage.config.execution.gather for change in kind):
            break
        for change in kind:
            if not tries:
                break
            tries -= 1
            flags = flags_for(plan, stage, change)
            say(f"trying {flags}")
            planned = plan_change(plan, stage, change)
            if planned.fits:
                remedies.append(Remedy(flags, planned))
                break
    return tuple(sorted(remedies, key=lambda remedy: remedy.planned.bound.overlapped if remedy.planned.bound else 0.0))


def _kinds(plan: Plan, stage: StagePlan) -> Iterator[list[Change]]:
    """Yield lists of changes of one kind, smallest first; a list is tried up to the first that fits."""
    now = current_settings(stage.config, stage.stage)
    devices, slices = len(plan.topology.devices), len(set(plan.topology.slices))
    shards = count_shards(stage.config.mesh, devices)
    more = [n for n in microbatch_counts(stage.stage.training, shards) if n > now.grad_accum_steps]
    yield [replace(now, grad_accum_steps=n) for n in _jump(stage, more)]
    yield [replace(now, remat=remat) for remat in REMAT[REMAT.index(now.remat) + 1 :]]
    wider = [mesh for mesh in meshes(stage.config, devices, slices) if mesh.fsdp > stage.config.mesh.fsdp]
    yield [replace(now, mesh=mesh) for mesh in wider[:3:2]]
    if more and wider:
        yield [replace(now, mesh=wider[-1], remat="full", grad_accum_steps=more[-1])]
    yield [*gathered_by_layer(replace(now, grad_accum_steps=[now.grad_accum_steps, *more][-1]), wider)]


def _jump(stage: StagePlan, more: list[int]) -> list[int]:
    """Return the numbers of microbatches worth trying. Temporaries shrink with them, so the first guess is close."""
    if not more or stage.needed is None or stage.capacity is None:
        return more[:2]
    over = stage.needed / stage.capacity
    enough = [n for n in more if n >= over * stage.stage.training.microbatches]
    return (enough or more[-1:])[:2]


def _summarise(planned: StagePlan) -> str:
    step = f", a step of at least {step_time(planned.bound.overlapped)}" if planned.bound else ""
    return f"{gib(planned.needed or 0)} of {gib(planned.capacity or 0)} GiB{step}"
