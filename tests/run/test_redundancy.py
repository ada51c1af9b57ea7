"""A flipped bit on one of eight devices is detected, the device is named, and nothing is saved."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import digests, train_alone, write_recipe

from bertjax.config import Config, MeshConfig, load_recipe
from bertjax.input.training_data import TrainingData
from bertjax.model.parameters import named_arrays
from bertjax.run.checkpoint import saved_steps
from bertjax.run.checks import check_redundancy
from bertjax.run.hooks.redundancy import WRONG_BITS, Redundancy, WrongBits
from bertjax.run.job import Job, RunStage, assemble
from bertjax.run.run_data import open_data
from bertjax.runtime.processes import alone
from bertjax.storage.progress import no_progress
from bertjax.training import step as step_module
from bertjax.training.stages import stage_step
from bertjax.training.state import TrainState

ODD = 5  # the faulty device
STEPS, VERIFY, DIGEST = 8, 3, 4


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, TrainingData]:
    folder = tmp_path_factory.mktemp("redundancy")
    config = load_recipe(write_recipe(folder))
    source = write_corpus(folder / "corpus.txt", 60)
    periods = {"log_every": 2, "eval_every": 100, "eval_rows": 16, "checkpoint_every": 2}
    config = replace(
        config,
        log=(),
        compilation_cache="",
        data=replace(config.data, sources=(f"lines:{source}",), root=str(folder / "data"), vocab_size=200),
        optimizer=replace(config.optimizer, warmup_steps=2),
        training=replace(
            config.training, steps=STEPS, verify_every=VERIFY, digest_every=DIGEST, keep_last=9, **periods
        ),
    )
    return config, open_data(config, no_progress)


@pytest.fixture(scope="module")
def job(prepared: tuple[Config, TrainingData]) -> Job:
    """A job on eight devices, each with the whole state."""
    return assemble(*prepared)


def flip(x: jax.Array) -> jax.Array:
    """Flip one bit of the first element."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    return jax.lax.bitcast_convert_type(words.at[0].set(words[0] ^ (1 << 12)), x.dtype).reshape(x.shape)


def flip_on_one(tree: Any) -> Any:
    """Inside a program for all devices, flip one bit of one array on `ODD`."""
    leaves, structure = jax.tree.flatten(tree)
    leaves[3] = jnp.where(jax.lax.axis_index("data") == ODD, flip(leaves[3]), leaves[3])
    return jax.tree.unflatten(structure, leaves)


def with_program(job: Job, wrong: Callable[..., Any], calls: set[int]) -> Job:
    """Return the job with the step program replaced by `wrong` in some calls, counted from 0."""
    (rows,) = job.stages
    right, done = rows.train_step.program, iter(range(10**6))

    def program(*arguments: Any) -> Any:
        return (wrong if next(done) in calls else right)(*arguments)

    return replace(job, stages=(replace(rows, train_step=replace(rows.train_step, program=program)),))


def wrong_step(job: Job, monkeypatch: pytest.MonkeyPatch, *, before_sum: bool) -> Callable[..., Any]:
    """Compile the step program with a flipped bit in the gradient on `ODD`, before or after the sum over devices."""
    right = step_module.reduce_gradients

    def reduce(grads: Any, blueprint: Any) -> Any:
        if before_sum:
            return right(flip_on_one(grads), blueprint)
        return flip_on_one(right(grads, blueprint))

    rows = job.stages[0]
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in rows.batches.spec(8).items()}
    with monkeypatch.context() as patched, jax.set_mesh(job.mesh):
        patched.setattr(step_module, "reduce_gradients", reduce)
        program = stage_step(job.config, rows, job.blueprint, job.optimizer).program
        return program.lower(job.blueprint.state, jax.ShapeDtypeStruct((), jnp.float32), batch, {}).compile()


def in_folder(job: Job, folder: Path) -> Job:
    return replace(job, config=replace(job.config, run_dir=str(folder)))


def train_until_error(job: Job) -> str:
    """Train until WrongBits is raised, check what all of its messages have in common, and return the message."""
    with pytest.raises(WrongBits) as error:
        train_alone(job)
    assert error.value.exit_code == WRONG_BITS == 76
    assert "nothing of it was saved" in str(error.value) and "run the same command again" in str(error.value)
    return str(error.value)


def devices_in(message: str) -> list[int]:
    """The ids of the devices in a message."""
    return [int(number) for number in re.findall(r"device (\d+) \(cpu", message)]


@pytest.fixture(scope="module")
def undisturbed(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without checks."""
    folder = tmp_path_factory.mktemp("undisturbed")
    training = replace(job.config.training, verify_every=0, digest_every=0)
    train_alone(in_folder(replace(job, config=replace(job.config, training=training)), folder))
    return folder


@pytest.mark.long  # the suite has a checked run on one device in test_small_run.py
def test_checked_run_has_the_bits_of_an_unchecked_one(job: Job, undisturbed: Path, tmp_path: Path) -> None:
    calls = []
    checked = with_program(job, lambda *arguments: None, set())
    (rows,) = checked.stages
    program = rows.train_step.program
    counted = replace(rows.train_step, program=lambda *arguments: (calls.append(1), program(*arguments))[1])
    checked = replace(checked, stages=(replace(rows, train_step=counted),))
    train_alone(in_folder(checked, tmp_path))
    assert len(calls) == STEPS + STEPS // VERIFY
    assert digests(tmp_path) == digests(undisturbed)


@pytest.mark.long
def test_wrong_gradient_after_the_sum_is_found(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = wrong_step(job, monkeypatch, before_sum=False)
    # The calls are steps 1, 2, 3 and 3 again; either of the two computations of step 3 may be wrong.
    for call in (2, 3):
        folder = tmp_path / str(call)
        message = train_until_error(in_folder(with_program(job, wrong, {call}), folder))
        assert message.startswith("step 3: computed twice") and devices_in(message) == [ODD]
        assert saved_steps(folder) == [2]
    message = train_until_error(in_folder(with_program(job, wrong, {0}), tmp_path / "replicas"))
    assert message.startswith("after step 2 device 5 (") and devices_in(message) == [ODD]
    assert saved_steps(tmp_path / "replicas") == []


@pytest.mark.long  # the suite tests flipped bits
def test_wrong_gradient_before_the_sum_is_found(
    job: Job, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = wrong_step(job, monkeypatch, before_sum=True)
    message = train_until_error(in_folder(with_program(job, wrong, {3}), tmp_path))
    assert "on every device; one of the 8 devices was wrong before gradients were summed" in message
    assert devices_in(message) == []
    # Running again ends like an undisturbed run.
    train_alone(in_folder(job, tmp_path))
    assert digests(tmp_path) == digests(undisturbed)


@pytest.mark.long
def test_repeatedly_wrong_device_is_named(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The device is wrong before the sum, and again when its gradients are checked."""
    wrong = wrong_step(job, monkeypatch, before_sum=True)
    right, after = Redundancy._shard_gradients, with_wrong_gradients(job).stages[0]

    def gradients_of(checks: Redundancy, rows: RunStage) -> Callable[..., Any]:
        programs, calls = (right(checks, rows), right(checks, after)), itertools.count()
        return lambda *arguments: programs[next(calls) >= 2](*arguments)

    monkeypatch.setattr(Redundancy, "_shard_gradients", gradients_of)
    message = train_until_error(in_folder(with_program(job, wrong, {3}), tmp_path))
    assert "on every device; device 5 (" in message and devices_in(message) == [ODD]


def with_wrong_gradients(job: Job) -> Job:
    """Return the job with a device that computes every gradient wrong in the same way."""
    (rows,) = job.stages

    class Flipped(step_module.StepGradient):
        def make_per_device(self, grad_accum_steps: int, shard_fn: Any, out_specs: Any) -> Any:
            return super().make_per_device(grad_accum_steps, lambda g, sums: shard_fn(flip_on_one(g), sums), out_specs)

    gradient = Flipped(**vars(rows.train_step.gradient))
    return replace(job, stages=(replace(rows, train_step=replace(rows.train_step, gradient=gradient)),))


@pytest.mark.long  # the suite tests flipped bits and an undisturbed run
def test_consistently_wrong_device_is_named(job: Job, tmp_path: Path) -> None:
    message = train_until_error(in_folder(with_wrong_gradients(job), tmp_path))
    assert message.startswith("step 3: device 5 (") and devices_in(message) == [ODD]
    assert "a different gradient than another device from the same rows" in message
    assert saved_steps(tmp_path) == [2]


@pytest.mark.long
def test_devices_that_split_rows_are_named_together(
    prepared: tuple[Config, TrainingData], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two devices compute a shard of the gradient together, so either may be wrong."""
    monkeypatch.setattr("test_redundancy.ODD", 1)
    config, content = prepared
    job = assemble(replace(config, mesh=MeshConfig(4, 1, 1, length=2)), content)
    message = train_until_error(in_folder(with_wrong_gradients(job), tmp_path))
    assert message.startswith("step 3: device") and devices_in(message) == [2, 3]
    assert saved_steps(tmp_path) == [2]


@pytest.mark.parametrize("mesh", [MeshConfig(), pytest.param(MeshConfig(1, 2, 2, length=2), id="sharded")])
def test_flipped_bit_in_any_array_is_found(mesh: MeshConfig, prepared: tuple[Config, TrainingData]) -> None:
    config, content = prepared
    job = assemble(replace(config, mesh=mesh), content)
    rng = np.random.default_rng(0)
    with alone() as processes, jax.set_mesh(job.mesh):
        checks = Redundancy(job, processes)
        make = jax.jit(lambda: jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), job.blueprint.state))
        state = jax.device_put(make(), job.blueprint.shardings)
        checks.compare_replicas(4, state)
        names = [*named_arrays(state)]
        for number in rng.choice(len(names), 12, replace=False).tolist():
            place = int(rng.integers(8))
            wrong = with_flipped_bit(state, number, job.mesh.devices.flat[place], rng)
            with pytest.raises(WrongBits) as error:
                checks.compare_replicas(4, wrong)
            copies = list(jax.tree.leaves(state)[number].addressable_shards)
            here = next(s for s in copies if s.device == job.mesh.devices.flat[place])
            replicas = [s.device.id for s in copies if s.index == here.index]
            # Two replicas have no majority, so both are named.
            assert devices_in(str(error.value)) == ([here.device.id] if len(replicas) > 2 else sorted(replicas))
            assert f"differ in the bits of {names[number]};" in str(error.value)


def with_flipped_bit(state: TrainState, number: int, device: jax.Device, rng: np.random.Generator) -> TrainState:
    """Return the state with a random bit of one array flipped on one device."""
    leaves, structure = jax.tree.flatten(state)
    parts = []
    for shard in leaves[number].addressable_shards:
        values = np.array(shard.data)
        if shard.device == device:
            words = values.reshape(-1).view(np.uint32)
            words[rng.integers(words.size)] ^= np.uint32(1) << np.uint32(rng.integers(32))
        parts.append(jax.device_put(values, shard.device))
    leaves[number] = jax.make_array_from_single_device_arrays(leaves[number].shape, leaves[number].sharding, parts)
    return jax.tree.unflatten(structure, leaves)


def test_disabled_checks_change_no_program(job: Job) -> None:
    training = replace(job.config.training, verify_every=0, digest_every=0)
    off = replace(job, config=replace(job.config, training=training))
    other = stage_step(off.config, off.stages[0], off.blueprint, off.optimizer)
    (rows,) = job.stages
    with alone() as processes, jax.set_mesh(job.mesh):
        batch = {n: jax.ShapeDtypeStruct(shape, dtype) for n, (shape, dtype) in rows.batches.spec(8).items()}
        traced = [str(one.trace(job.blueprint.state, batch).jaxpr) for one in (rows.train_step, other)]
        programs = [re.sub(r"0x[0-9a-f]+", "", text) for text in traced]  # addresses of functions
        assert programs[0] == programs[1]
        checks = Redundancy(off, processes)
        assert checks.checked(rows) is rows
        for number in range(12):  # would fail if it read the state, because there is no run
            checks.before_step(number)
            checks.before_save(number)


def test_checks_on_a_gpu_require_deterministic(job: Job) -> None:
    class Gpu:
        platform = "gpu"

    mesh = type("OnGpus", (), {"devices": np.array([Gpu()])})()
    for training in (replace(job.config.training, digest_every=0), replace(job.config.training, verify_every=0)):
        config = replace(job.config, training=training)
        with pytest.raises(ValueError, match=r"training\.(verify|digest)_every=\d on a GPU with deterministic=False"):
            check_redundancy(config, mesh)
        check_redundancy(replace(config, deterministic=True), mesh)
