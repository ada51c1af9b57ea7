"""Keep the microbatches, recomputation, gathering and unrolling that were chosen for the devices when a run began."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import Config, from_dict
from bertjax.run.checkpoint import read_newest_metadata
from bertjax.runtime.host_memory import device_memory
from bertjax.runtime.processes import Processes
from bertjax.training.memory_fit import AUTO, REMAT, is_undecided, with_microbatches
from bertjax.training.stages import make_stages, training_mesh

_MEMORY_TOLERANCE = 0.95  # share of the earlier memory that counts as the same; machines of one kind differ a little


def keep_choices(config: Config, processes: Processes) -> Config:
    """Replace every `auto` of the step by the value that was chosen when the run in its directory began.

    These are `training.grad_accum_steps` and `execution.scan_unroll`. Returns the config unchanged for a new run. Also
    if the mesh or the kind of device changed, or if a device of any process has less memory than before; the values are
    then chosen again.
    """
    fits_memory, decides_unrolling = is_undecided(config), config.execution.scan_unroll == AUTO
    if not (fits_memory or decides_unrolling):
        return config
    saved = read_newest_metadata(config.directory)
    answers = processes.gather("the machine that the run began on", "same" if _is_same_machine(saved, config) else "")
    if saved is None or not all(answers):
        return config
    original = from_dict(saved["config"])
    if decides_unrolling:
        config = replace(config, execution=replace(config.execution, scan_unroll=original.execution.scan_unroll))
    if not fits_memory or len(original.stages) != len(config.stages) or is_undecided(original):
        return config
    undecided = [stage.number for stage in make_stages(config) if stage.training.grad_accum_steps == AUTO]
    counts = {stage.number: stage.training.microbatches for stage in make_stages(original) if stage.number in undecided}
    remat = max(config.execution.remat, original.execution.remat, key=REMAT.index)
    gather = "layer" if "layer" in (config.execution.gather, original.execution.gather) else "step"
    execution = replace(config.execution, remat=remat, gather=gather)
    return replace(with_microbatches(config, counts), execution=execution)


def _is_same_machine(saved: dict[str, Any] | None, config: Config) -> bool:
    """Whether a checkpoint was written on this mesh and kind of device, with no more memory than there is now."""
    if saved is None:
        return False
    mesh = training_mesh(config)
    sizes = {axis: int(size) for axis, size in mesh.shape.items()}
    if saved.get("mesh") != sizes or saved.get("device_kind") != mesh.devices.flat[0].device_kind:
        return False
    before, now = saved.get("device_memory"), device_memory(mesh.local_devices[0])
    return before is None or now is None or now >= _MEMORY_TOLERANCE * before
