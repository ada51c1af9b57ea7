"""Changes to a recipe that save memory: each as the keys that make it, so that it can be tried and told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bertjax.config import Config, MeshConfig
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import accumulation_key
from bertjax.plan.estimates import Plan, StagePlan
from bertjax.training.stages import Stage, stages_of

REMAT = ("none", "dots", "full")


@dataclass(frozen=True)
class Change:
    """Values of the keys that decide how a stage is laid out on a machine."""

    mesh: MeshConfig
    remat: str
    grad_accum_steps: int

    def applied(self, config: Config, stage: Stage) -> tuple[Config, Stage]:
        """A config and a stage of it with these values."""
        execution = replace(config.execution, remat=self.remat)
        training = replace(stage.training, grad_accum_steps=self.grad_accum_steps)
        return replace(config, mesh=self.mesh, execution=execution), replace(stage, training=training)

    def flags(self, config: Config, stage: Stage) -> str:
        """What of it differs from a config, as it is written on the command line."""
        told = []
        for axis in ("data", "fsdp", "tensor", "dcn_data", "dcn_fsdp"):
            value = getattr(self.mesh, axis)
            if value != getattr(config.mesh, axis):
                told.append(f"--mesh.{axis.replace('_', '-')} {value}")
        if self.remat != config.execution.remat:
            told.append(f"--execution.remat {self.remat}")
        if self.grad_accum_steps != stage.training.grad_accum_steps:
            told.append(f"{accumulation_key(stage.number)} {self.grad_accum_steps}")
        return " ".join(told)


def flags_for(plan: Plan, stage: StagePlan, change: Change) -> str:
    """What is to be added to the command line that was planned, so that a stage has a change."""
    # A mesh that stays as it is need not be written otherwise than the user has it.
    asked = replace(plan.asked, mesh=change.mesh) if change.mesh == plan.config.mesh else plan.asked
    return change.flags(asked, stages_of(plan.asked)[stage.stage.number])


def as_it_is(config: Config, stage: Stage) -> Change:
    """The values of a config."""
    return Change(config.mesh, config.execution.remat, stage.training.grad_accum_steps)


def microbatches(stage: Stage, shards: int) -> Iterator[int]:
    """Every number of microbatches that splits the batch evenly over so many parts of a mesh, few first."""
    rows = stage.training.global_batch_size
    yield from (n for n in range(1, rows // shards + 1) if rows % (n * shards) == 0)


def meshes(config: Config, devices: int, slices: int) -> Iterator[MeshConfig]:
    """Meshes over data and fsdp with the config's tensor axis, whole copies of the weights first.

    fsdp stays within a slice: gathering weights over the network every step costs more than it saves.
    """
    across = devices // config.mesh.tensor
    hidden = config.model.hidden_size
    for fsdp in (n for n in range(1, across // slices + 1) if across // slices % n == 0 and hidden % n == 0):
        if fsdp & (fsdp - 1) == 0:
            yield replace(config.mesh, data=-1, fsdp=fsdp, dcn_data=-1, dcn_fsdp=1)


def shards_of(mesh: MeshConfig, devices: int) -> int:
    """Into how many parts a mesh of so many devices splits a batch."""
    assert len(BATCH_AXES) == 2, "a batch is split over data and fsdp"
    return devices // mesh.tensor
