"""Out-of-memory errors that name the settings to change."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import jax
from jax.sharding import Mesh

from bertjax.config import Config
from bertjax.parallel.mesh import batch_shards
from bertjax.runtime.host_memory import machine_memory
from bertjax.training.stages import Stage

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers

EXHAUSTED = "RESOURCE_EXHAUSTED"
# Sizes of failed allocations in the messages of XLA's allocators and compilers.
_REQUESTED = (
    r"(?:allocating|allocate) (?P<bytes>\d+) bytes",
    r"Failed to allocate request for \S+ \((?P<bytes>\d+)B\)",
    r"(?:trying|Attempting|Failed) to allocate (?P<text>[\d.]+ ?[KMGT]i?B?\b)",
    r"total memory required[^(]*\((?P<text>[\d.]+[KMGT])\)",
    r"Used (?P<text>[\d.]+[KMGT]) of",
)
_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


class OutOfMemory(RuntimeError):
    """A device ran out of memory; the message names the settings to change."""


@contextlib.contextmanager
def explain_exhausted_memory(
    doing: str,
    config: Config,
    mesh: Mesh,
    stage: Stage | None = None,
    saved: Callable[[], Sequence[int]] | None = None,
    *,
    of_a_recipe: bool = True,
) -> Iterator[None]:
    """Turn XLA's error for exhausted memory, at compile time or later, into OutOfMemory.

    `doing` names the activity; `stage` is the stage whose rows were computed, if any; `saved` returns the steps that
    have a checkpoint, if there can be any. Without a recipe there are no keys to change.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if EXHAUSTED not in str(error):
            raise
        device = mesh.local_devices[0]  # devices of other processes do not report their memory
        if of_a_recipe:
            changes = remedies(config, mesh, stage)
        else:
            other_machine = "the machine: devices with more memory, or more devices, which share the rows"
            changes = [*_gpu_memory_fraction(mesh), other_machine]
        lines = [
            f"out of memory while {doing}: {_requested(str(error))}; {_capacity(device)}. Change, in this order:",
            *[f"  {line}" for line in changes],
            *([] if saved is None else [_last_checkpoint(saved)]),
            f"XLA's message: {str(error).strip().splitlines()[0][:300]}",
        ]
        raise OutOfMemory("\n".join(lines)) from error


def remedies(config: Config, mesh: Mesh, stage: Stage | None) -> list[str]:
    """List settings that reduce memory, the cheapest first, each with the value to try."""
    advice = [] if stage is None else [*_smaller_microbatches(mesh, stage), *_rematerialised(config)]
    shards, fsdp = batch_shards(mesh), mesh.shape["fsdp"]
    wider = [
        size for size in range(2 * fsdp, shards + 1) if shards % size == 0 and config.model.hidden_size % size == 0
    ]
    if wider:
        advice.append(f"--mesh.fsdp {wider[0]}: weights and moments split over {wider[0]} devices")
    if fsdp > 1 and config.execution.gather == "step":
        advice.append("--execution.gather layer with a remat: no device holds the weights of all layers at once")
    return [
        *advice,
        *_gpu_memory_fraction(mesh),
        "bertjax plan RECIPE --topology local: computes which of these fit, before anything runs",
    ]


def _gpu_memory_fraction(mesh: Mesh) -> list[str]:
    if mesh.devices.flat[0].platform != "gpu" or _FRACTION in os.environ:
        return []
    return [f"{_FRACTION}=0.92 in the environment: by default jax takes three quarters of a GPU's memory"]


def _smaller_microbatches(mesh: Mesh, stage: Stage) -> list[str]:
    training, shards = stage.training, batch_shards(mesh)
    rows, now = training.global_batch_size // shards, training.microbatches
    larger = [count for count in range(2 * now, rows + 1) if rows % count == 0]
    if not larger:
        return []
    key = "training" if stage.number == 0 else f"stages.{stage.number - 1}"
    return [
        f"--{key}.grad-accum-steps {larger[0]}: {rows // larger[0]} rows a device at a time instead of {rows // now}, "
        "the same result but for the last bits"
    ]


def _rematerialised(config: Config) -> list[str]:
    options = {
        "dots": "--execution.remat dots: the backward pass recomputes all but the matmuls",
        "full": "--execution.remat full: the backward pass recomputes every layer, a third more work",
    }
    return list(options.values())[{"none": 0, "dots": 1, "full": 2}[config.execution.remat] :]


def _requested(message: str) -> str:
    for pattern in _REQUESTED:
        if match := re.search(pattern, message):
            parts = match.groupdict()
            if "bytes" in parts:
                return f"{int(parts['bytes']) / 1e9:,.2f} GB more were requested"
            return f"{parts['text']} were requested"
    return "the size of the allocation is unknown"


def _capacity(device: Device) -> str:
    """Describe the memory of a device; for a CPU, the machine's memory and the limit of this process."""
    stats = device.memory_stats() or {}
    name = f"{device.device_kind} {device.id}"
    if "bytes_limit" in stats:
        used = stats.get("bytes_in_use", 0)
        return f"{name} has {stats['bytes_limit'] / 1e9:,.2f} GB for jax, {used / 1e9:,.2f} GB of it in use"
    if device.platform != "cpu":
        return f"{name} does not report its memory"
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = "" if allowed == resource.RLIM_INFINITY else f", and this process may map {allowed / 1e9:,.2f} GB"
    return f"this machine has {machine_memory() / 1e9:,.2f} GB{limited}"


def _last_checkpoint(saved: Callable[[], Sequence[int]]) -> str:
    try:
        steps = saved()
    except OSError as error:  # the save in progress failed
        return str(error)
    if not steps:
        return "There is no checkpoint yet; the same command with the change starts from the beginning."
    return f"The last checkpoint, of step {max(steps):,}, is intact; the same command with the change resumes from it."
