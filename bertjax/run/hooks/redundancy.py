"""Detect silent arithmetic errors: compute steps twice, compare replicas bit by bit, and name the faulty device.

A defective processor sometimes computes a wrong result without reporting an error. Two checks detect this:

1. `training.verify_every`: take a step twice from the same state and compare the bits of both results on every device.
   If several devices share a batch, each device's gradient, before any sum, is also computed by its neighbour, which
   detects a device that repeats the same error.
2. `training.digest_every`: compare digests between devices that hold the same part of the state; also before every
   save.

Between checked steps there is no overhead; the train step is the same program with and without checks.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.model.parameters import named_arrays
from bertjax.parallel.mesh import BATCH_AXES, batch_shards
from bertjax.run.callbacks import Callback
from bertjax.run.job import Job, RunStage
from bertjax.runtime.processes import Processes
from bertjax.storage.terminal import first_names
from bertjax.training.digest import local_digest
from bertjax.training.exchange import Frozen
from bertjax.training.objectives import Batch
from bertjax.training.state import TrainState
from bertjax.training.step import Metrics, batch_weights

WRONG_BITS = 76  # exit code
_SEARCHES = 6  # extra computations to identify the faulty device
_MOST_ARRAYS = 3  # in a message
_MOST_DEVICES = 8  # in a message


class WrongBits(RuntimeError):
    """A device computed a wrong result, which was not saved."""

    exit_code = WRONG_BITS


class Redundancy(Callback):
    """Runs in every process; all processes see the same digests and end together."""

    def __init__(self, job: Job, processes: Processes) -> None:
        self._mesh, self._state, self._processes = job.mesh, job.blueprint.state, processes
        training = job.config.training
        self._verify_every, self._digest_every = training.verify_every, training.digest_every
        self._gradients: dict[int, Callable[..., jax.Array]] = {}  # by stage

    def checked(self, stage: RunStage) -> RunStage:
        """Return the stage with a step that verifies itself when due, and raises WrongBits naming the devices."""
        if not self._verify_every:
            return stage

        def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            if (self.run.step + 1) % self._verify_every:
                return stage.train_step(state, batch)
            with self._processes.taking_time():  # it compiles more programs
                return self.verified(stage, self.run.step, state, batch)

        return replace(stage, checked_step=step)

    def before_step(self, step: int) -> None:
        if self._digest_every and step and step % self._digest_every == 0:
            self.compare_replicas(step, self.run.state)

    def before_save(self, step: int) -> None:
        """Compare the replicas of the state before it is saved."""
        if self._digest_every:
            self.compare_replicas(step, self.run.state)

    def compare_replicas(self, step: int, state: TrainState) -> None:
        """Raise WrongBits naming the devices whose copy of the state after `step` steps differs from the others."""
        with self._processes.taking_time():
            digests = self._digests(state)
        odd: dict[int, list[str]] = {}
        for number, (name, array) in enumerate(named_arrays(self._state).items()):
            for replicas in _replicas(array.sharding, array.shape, self._mesh):
                for index in _minority(replicas, digests[:, number]):
                    odd.setdefault(index, []).append(name)
        if odd:
            arrays = list(dict.fromkeys(name for names in odd.values() for name in names))
            raise WrongBits(
                f"after step {step:,} {self._names(odd)} and the devices with the same part of the state differ in "
                f"the bits of {first_names(arrays, _MOST_ARRAYS)}; {_ADVICE}"
            )

    def verified(self, stage: RunStage, step: int, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Take step number `step` (from 0) twice and compare the results. Raises WrongBits naming the devices."""
        suspects = self._disagreeing_shards(stage, state, batch)
        if suspects:
            raise WrongBits(
                f"step {step + 1:,}: {self._names(suspects)} computed a different gradient than another device from "
                f"the same rows; {_ADVICE}"
            )
        again, _ = stage.train_step(jax.tree.map(jnp.copy, state), batch)
        expected = self._digests(again)
        del again
        state, metrics = stage.train_step(state, batch)
        differing = np.flatnonzero((self._digests(state) != expected).any(axis=(1, 2))).tolist()
        if not differing:
            return state, metrics
        if len(differing) < self._mesh.size or self._mesh.size == 1:
            raise WrongBits(
                f"step {step + 1:,}: computed twice from the same state and batch, its results differ on "
                f"{self._names(differing)}; {_ADVICE}"
            )
        # The error was in a gradient before the sum, which spread it to all devices.
        for _ in range(_SEARCHES):
            suspects = self._disagreeing_shards(stage, state, batch)
            if suspects:
                break
        which = (
            f"{self._names(suspects)} computes a different gradient than its neighbours from the same rows"
            if suspects
            else f"one of the {self._mesh.size} devices was wrong before gradients were summed, but not again in "
            f"{_SEARCHES} further computations"
        )
        raise WrongBits(
            f"step {step + 1:,}: computed twice from the same state and batch, its results differ on every "
            f"device; {which}; {_ADVICE}"
        )

    def _disagreeing_shards(self, stage: RunStage, state: TrainState, batch: Batch) -> list[int]:
        """Mesh indices of the devices whose gradient of a shard of the batch differs from another device's.

        Each shard's gradient is computed by its own device and by the next one. If they differ, a third device decides;
        with only two devices, the first computes it again.
        """
        shards = batch_shards(self._mesh)
        if shards == 1:
            return []
        number = stage.number
        gradients = self._gradients[number] = self._gradients.get(number) or self._shard_gradients(stage)
        first, second = (np.asarray(gradients(state, batch, np.int32(shift))) for shift in (0, 1))
        differing = np.flatnonzero((first != second).any(axis=(1, 2)))
        if not len(differing):
            return []
        third = np.asarray(gradients(state, batch, np.int32(2)))
        odd: set[int] = set()
        for part in differing.tolist():
            by = [(part + shift) % shards for shift in range(3)]
            digests = [shard_digests[part].tobytes() for shard_digests in (first, second, third)]
            if shards == 2:
                odd |= {by[0]} if digests[1] == digests[2] else set(by)
            else:
                most, count = Counter(digests).most_common(1)[0]
                odd |= {shard for shard, digest in zip(by, digests, strict=True) if count == 1 or digest != most}
        shard_size = self._mesh.size // shards  # devices
        return sorted(shard * shard_size + index for shard in odd for index in range(shard_size))

    def _shard_gradients(self, stage: RunStage) -> Callable[..., jax.Array]:
        """Build `(state, batch, shift) -> uint32 [shards, arrays, 5]`: digests of each batch shard's gradient.

        The gradient, before any sum over devices, is computed by the device `shift` shards further on.
        """
        train_step, shards = stage.train_step, batch_shards(self._mesh)
        parts, everywhere = train_step.gradient, NamedSharding(self._mesh, P())

        def shard_fn(grads: Any, sums: Metrics) -> jax.Array:
            return _stacked(grads)[None]

        gradient = parts.make_per_device(stage.training.microbatches, shard_fn, P(BATCH_AXES))

        @functools.partial(jax.jit, out_shardings=everywhere, compiler_options=parts.options)
        def gradients(state: TrainState, batch: Batch, shift: jax.Array, frozen: Frozen) -> jax.Array:
            by = shift * (batch["input_ids"].shape[0] // shards)
            weights = batch_weights(batch, parts.objectives)
            batch, keys = jax.tree.map(lambda x: jnp.roll(x, by, axis=0), (batch, parts.keys(state.step, batch)))
            digests = gradient(state.params, batch, keys, weights, frozen)
            return jnp.roll(digests, -shift, axis=0)

        return lambda state, batch, shift: gradients(state, batch, shift, train_step.frozen)

    def _digests(self, state: TrainState) -> np.ndarray:
        """Digests of the part of each array on each device: uint32 [devices, arrays, 5] in the mesh's order."""
        return np.asarray(self._digest(list(named_arrays(state).values())))

    @functools.cached_property
    def _digest(self) -> Callable[[list[jax.Array]], jax.Array]:
        specs = [array.sharding.spec for array in named_arrays(self._state).values()]
        here = jax.shard_map(
            lambda arrays: _stacked(arrays)[None],
            mesh=self._mesh,
            in_specs=(specs,),
            out_specs=P(self._mesh.axis_names),
            check_vma=False,
        )
        return jax.jit(here, out_shardings=NamedSharding(self._mesh, P()))

    def _names(self, indices: Iterable[int]) -> str:
        """Describe devices by their mesh indices, each with its process and host."""
        devices = [self._mesh.devices.flat[index] for index in sorted(indices)]
        names = [f"device {d.id} ({d.device_kind}, {self._processes.describe([d.process_index])})" for d in devices]
        return first_names(names, _MOST_DEVICES)


_ADVICE = (
    "nothing of it was saved. Remove the device, or its host, from the job, then run the same command again to resume "
    "from the newest checkpoint"
)


def _stacked(tree: Any) -> jax.Array:
    """Digests of the local part of every array of a tree: uint32 [arrays, 5]."""
    return jnp.stack([local_digest(x) for x in jax.tree.leaves(tree)])


def _replicas(sharding: NamedSharding, shape: Sequence[int], mesh: Mesh) -> list[list[int]]:
    """For every part of an array that several devices hold, the mesh indices of these devices."""
    indices = {device: index for index, device in enumerate(mesh.devices.flat)}
    parts: dict[str, list[int]] = {}
    for device, slices in sharding.devices_indices_map(tuple(shape)).items():
        parts.setdefault(str(slices), []).append(indices[device])
    return [sorted(part) for part in parts.values() if len(part) > 1]


def _minority(replicas: list[int], digests: np.ndarray) -> list[int]:
    """The replicas whose digest differs from the majority; all replicas if there is no majority."""
    bytes_by_replica = {index: digests[index].tobytes() for index in replicas}
    (most, count), *_ = Counter(bytes_by_replica.values()).most_common(1)
    if count == len(replicas):
        return []
    return [index for index, digest in bytes_by_replica.items() if digest != most or 2 * count <= len(replicas)]
