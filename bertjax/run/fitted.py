"""A resumed run keeps what was decided to fit the devices when it began: microbatches, recomputation, gathering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import Config, from_dict
from bertjax.run.checkpoint import read_metadata, saved_steps
from bertjax.run.checkpoint_metadata import DamagedCheckpoint
from bertjax.runtime.host_memory import device_memory
from bertjax.runtime.processes import Processes
from bertjax.storage.remote import to_path
from bertjax.training.memory_fit import AUTO, REMAT, is_undecided, with_microbatches
from bertjax.training.stages import make_stages, training_mesh

_AS_MUCH = 0.95  # share of the memory then: machines of a kind differ by a little


def as_fitted(config: Config, processes: Processes) -> Config:
    """The config with what `training.grad_accum_steps=auto` became when the run in its directory began.

    Unchanged for a new run, and if the mesh or the kind of device is another, or a device of one of the processes has
    less memory: then it is decided again. A damaged checkpoint is ignored: restoring it reports what is wrong.
    """
    if not is_undecided(config):
        return config
    directory = to_path(config.directory)
    try:
        saved = read_metadata(directory) if saved_steps(directory) else None
    except DamagedCheckpoint:
        saved = None
    answers = processes.gather("the machine that the run began on", "same" if _is_same_machine(saved, config) else "")
    if saved is None or not all(answers):
        return config
    begun = from_dict(saved["config"])
    if len(begun.stages) != len(config.stages) or is_undecided(begun):
        return config
    undecided = [stage.number for stage in make_stages(config) if stage.training.grad_accum_steps == AUTO]
    numbers = {stage.number: stage.training.microbatches for stage in make_stages(begun) if stage.number in undecided}
    remat = max(config.execution.remat, begun.execution.remat, key=REMAT.index)
    gather = "layer" if "layer" in (config.execution.gather, begun.execution.gather) else "step"
    execution = replace(config.execution, remat=remat, gather=gather)
    return replace(with_microbatches(config, numbers), execution=execution)


def _is_same_machine(saved: dict[str, Any] | None, config: Config) -> bool:
    """Whether a checkpoint is of the mesh and the kind of device here, with as much memory or less."""
    if saved is None:
        return False
    mesh = training_mesh(config)
    sizes = {axis: int(size) for axis, size in mesh.shape.items()}
    if saved.get("mesh") != sizes or saved.get("device_kind") != mesh.devices.flat[0].device_kind:
        return False
    then, now = saved.get("device_memory"), device_memory(mesh.local_devices[0])
    return then is None or now is None or now >= _AS_MUCH * then
