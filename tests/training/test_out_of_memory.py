"""Out-of-memory errors name the settings to change: for every wording of XLA, anywhere in a run, and for real."""

from __future__ import annotations

import resource
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import command, write_recipe

from bertjax.config import Config, ExecutionConfig, MeshConfig, StageConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.run.run_directory import load_run
from bertjax.training.out_of_memory import OutOfMemory, explain_exhausted_memory, remedies
from bertjax.training.stages import make_stages

CONFIG = Config(
    training=TrainingConfig(global_batch_size=96, grad_accum_steps=2),
    stages=(StageConfig(start=900_000, global_batch_size=8, grad_accum_steps=1),),
)
ROWS, LAST_ROWS = make_stages(CONFIG)


def mesh(devices: int = 1, fsdp: int = 1) -> jax.sharding.Mesh:
    return make_mesh(MeshConfig(fsdp=fsdp), jax.devices()[:devices])


def test_remedies_name_values_that_work() -> None:
    first, dots, full, plan = remedies(CONFIG, mesh(), ROWS)
    assert first.startswith("--training.grad-accum-steps 4: 24 rows a device at a time instead of 48")
    assert dots.startswith("--execution.remat dots") and full.startswith("--execution.remat full")
    assert plan.startswith("bertjax plan ")


def test_remedies_depend_on_the_stage_and_the_mesh() -> None:
    lines = remedies(CONFIG, mesh(4, fsdp=2), LAST_ROWS)
    assert lines[0].startswith("--stages.0.grad-accum-steps 2: 1 rows a device")
    assert lines[3].startswith("--mesh.fsdp 4") and lines[4].startswith("--execution.gather layer")
    assert not any("grad-accum" in line for line in remedies(CONFIG, mesh(8), LAST_ROWS))  # one row per device already
    # 45 rows in 3 microbatches: the next number that divides them is 9, not 6.
    odd = replace(ROWS, training=replace(ROWS.training, global_batch_size=45, grad_accum_steps=3))
    assert remedies(CONFIG, mesh(), odd)[0].startswith("--training.grad-accum-steps 9: 5 rows")


def test_remedies_leave_out_settings_already_in_use() -> None:
    rematerialised = replace(CONFIG, execution=ExecutionConfig(remat="dots"))
    assert [line.split(":")[0] for line in remedies(rematerialised, mesh(), ROWS)][1] == "--execution.remat full"
    for_state = remedies(CONFIG, mesh(8), None)
    assert for_state[0].startswith("--mesh.fsdp 2") and len(for_state) == 2


@pytest.mark.parametrize(
    ("error", "size"),
    [
        ("Out of memory allocating 8388608000 bytes.", "8.39 GB more were requested"),  # CPU
        ("Out of memory while trying to allocate 4770354232 bytes.\nBufferAssignment", "4.77 GB more"),  # GPU
        ("Failed to allocate request for 6.27GiB (6727663616B) on device ordinal 0", "6.73 GB more"),
        ("Out of memory while trying to allocate 6.27GiB.", "6.27GiB were requested"),
        (
            "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries "
            "(16.17G) exceeds available HBM (15.75G). HLO module: jit_train_step.",
            "16.17G were requested",
        ),
        ("Ran out of memory in memory space hbm. Used 20.9G of 15.48G hbm. Exceeded", "20.9G were requested"),
        ("something new", "the size of the allocation is unknown"),
    ],
)
def test_requested_size_is_parsed_from_every_wording(error: str, size: str) -> None:
    with (
        pytest.raises(OutOfMemory) as caught,
        explain_exhausted_memory("evaluating", CONFIG, mesh(), ROWS, lambda: [100, 200]),
    ):
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {error}")
    message = str(caught.value)
    assert message.startswith(f"out of memory while evaluating: {size}")
    assert f"XLA's message: RESOURCE_EXHAUSTED: {error.splitlines()[0]}" in message
    assert "The last checkpoint, of step 200, is intact" in message
    assert "this machine has" in message


def test_other_jax_errors_pass_through() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explain_exhausted_memory("x", CONFIG, mesh()):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")


def test_without_a_recipe_no_keys_or_checkpoints_are_named() -> None:
    context = explain_exhausted_memory("evaluating", CONFIG, mesh(), ROWS, of_a_recipe=False)
    with pytest.raises(OutOfMemory) as caught, context:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: much")
    assert "--" not in str(caught.value) and "checkpoint" not in str(caught.value)


class RemoteDevice:
    """A device of another process, which does not report its memory to this one."""

    platform = "tpu"

    def memory_stats(self) -> None:
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: MemoryStats is only supported for addressable devices.")


def test_each_process_reports_its_own_device() -> None:
    several = SimpleNamespace(devices=np.array([RemoteDevice(), jax.devices()[0]]), local_devices=jax.devices()[:1])
    context = explain_exhausted_memory("evaluating", CONFIG, several, of_a_recipe=False)
    with pytest.raises(OutOfMemory, match="this machine has"), context:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: much")


def test_failed_save_is_reported_instead_of_a_checkpoint() -> None:
    def saved() -> list[int]:
        raise OSError("checkpoint 7 was not written: the disk is full")

    context = explain_exhausted_memory("training", CONFIG, mesh(), ROWS, saved)
    with pytest.raises(OutOfMemory, match="checkpoint 7 was not written"), context:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: much")


def test_failed_allocation_is_reported() -> None:
    with pytest.raises(OutOfMemory, match=r"281,474.98 GB more"), explain_exhausted_memory("x", CONFIG, mesh()):
        jnp.ones((2**16, 2**16, 2**14)).block_until_ready()


@pytest.mark.long
def test_second_stage_out_of_memory_keeps_the_checkpoint(tmp_path: Path) -> None:
    recipe, source = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 60)
    stage = "StageConfig(start=4, sequence_length=512, global_batch_size=4096, grad_accum_steps=1)"
    text = recipe.read_text().replace("import Config,", "import Config, StageConfig,")
    recipe.write_text(text.replace('name="tiny",', f'name="tiny", stages=({stage},),'))
    shape = ("--model.num-attention-heads", "32", "--model.max-position-embeddings", "512")
    brief = ("--training.steps", "8", "--stages.0.start", "4")
    brief += ("--training.eval-rows", "8", "--training.eval-every", "100")
    arguments = command(recipe, source, tmp_path / "run", *shape, *brief, "--optimizer.warmup-steps", "2")
    # The step takes 969 GB, more than this limit, however much the system would promise.
    limit = (resource.RLIMIT_AS, (2**36, 2**36))
    ended = subprocess.run(
        arguments, capture_output=True, text=True, timeout=600, preexec_fn=lambda: resource.setrlimit(*limit)
    )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert "out of memory while training on 4,096 rows of 512 tokens" in ended.stderr, ended.stderr
    assert "and this process may map 68.72 GB" in ended.stderr
    assert "--stages.0.grad-accum-steps 2:" in ended.stderr
    assert "The last checkpoint, of step 4, is intact" in ended.stderr
    assert load_run(tmp_path / "run").step == 4  # its digests verify
