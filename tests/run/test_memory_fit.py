"""`grad_accum_steps=auto`: the fewest microbatches that fit, then recomputation; a resumed run keeps the decision."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from generated_corpus import write_corpus
from tiny_runs import train_alone, write_recipe

from bertjax.config import Config, DataConfig, ExecutionConfig, MeshConfig, StageConfig, TrainingConfig, load_recipe
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import read_metadata
from bertjax.run.job import assemble
from bertjax.run.resume_choices import keep_choices
from bertjax.run.run_data import open_data
from bertjax.runtime.processes import alone
from bertjax.storage.progress import no_progress
from bertjax.training import step_programs
from bertjax.training.memory_fit import USABLE, fewest, fit_to_memory
from bertjax.training.stages import Stage, make_stages
from bertjax.training.step_programs import StepPrograms

# Rows of 128 and then 512 tokens, 256 rows on 2 devices: 32 and 8 rows per device are 4,096 tokens.
CONFIG = Config(
    data=DataConfig(sequence_length=128, max_predictions=20),
    training=TrainingConfig(steps=20_000, global_batch_size=256),
    stages=(StageConfig(start=18_000, sequence_length=512, max_predictions=77),),
)

ON_BOTH = MeshConfig()


def step_bytes(execution: ExecutionConfig, stage: Stage) -> float:
    """Memory of an imaginary step: 100 bytes, and one per token of a microbatch, less with recomputation."""
    tokens = stage.training.rows_at_a_time // 2 * stage.data.sequence_length
    return 100 + tokens * {"none": 1.0, "dots": 0.5, "full": 0.25}[execution.remat]


def fit(limit: float | None, config: Config = CONFIG, mesh: MeshConfig = ON_BOTH) -> tuple[list[int], str]:
    """Microbatches of each stage and the recomputation, for two devices with `limit` bytes of memory."""

    def bound(execution: ExecutionConfig, stage: Stage) -> tuple[int, int]:
        return 100, round(10 * step_bytes(execution, stage))

    fitted, reason = fit_to_memory(config, make_mesh(mesh, jax.devices()[:2]), limit, bound, step_bytes)
    stages = make_stages(fitted)
    is_too_large = limit is not None and any(step_bytes(fitted.execution, stage) > limit for stage in stages)
    assert ("Warning" in reason) == is_too_large or not reason
    return [stage.training.microbatches for stage in stages], fitted.execution.remat


@pytest.mark.parametrize(
    ("limit", "microbatches", "remat"),
    [
        (None, [1, 1], "none"),
        (1e6, [1, 1], "none"),
        (100 + 128 * 128, [1, 4], "none"),
        (100 + 64 * 128, [2, 8], "none"),
        (100 + 32 * 128, [4, 16], "none"),  # 4,096 tokens per device
        (100 + 16 * 128, [4, 16], "dots"),
        (100 + 8 * 128, [4, 16], "full"),
        (100 + 4 * 128, [8, 32], "full"),
        (100 + 128, [32, 128], "full"),
        (100, [128, 128], "full"),  # one row per device, which does not fit either
    ],
)
def test_microbatches_come_before_recomputation(limit: float | None, microbatches: list[int], remat: str) -> None:
    assert fit(limit) == (microbatches, remat)
    # If both devices share every row, each has as many tokens, down to one row per microbatch.
    assert fit(limit, mesh=MeshConfig(1, length=2)) == (microbatches if limit != 100 else [256, 256], remat)


def test_gathering_by_layer_is_the_last_resort() -> None:
    def weights_and_tokens(execution: ExecutionConfig, stage: Stage) -> float:
        return step_bytes(execution, stage) + (1_000 if execution.gather == "step" else 10)

    def settings(limit: float, mesh: MeshConfig) -> tuple[list[int], str, str]:
        devices = make_mesh(mesh, jax.devices()[:2])
        fitted, reason = fit_to_memory(CONFIG, devices, limit, lambda *_: (100, 10**9), weights_and_tokens)
        assert ("execution.gather layer" in reason) == (fitted.execution.gather == "layer")
        counts = [stage.training.microbatches for stage in make_stages(fitted)]
        return counts, fitted.execution.remat, fitted.execution.gather

    split, whole = MeshConfig(fsdp=2), MeshConfig()
    assert settings(1_228, split) == ([32, 128], "full", "step")
    assert settings(1_227, split) == ([4, 16], "full", "layer")
    assert settings(1_227, whole) == ([64, 128], "full", "step")


def test_longest_stage_decides_recomputation_first() -> None:
    """The rows of 512 tokens decide on recomputation before a step with other rows is compiled."""
    tried: list[tuple[str, int]] = []

    def long_rows_need_more(execution: ExecutionConfig, stage: Stage) -> float:
        tried.append((execution.remat, stage.data.sequence_length))
        return step_bytes(execution, stage) * (4 if stage.data.sequence_length == 512 else 1)

    mesh, large = make_mesh(MeshConfig(), jax.devices()[:2]), (100, 10**9)
    fitted, _ = fit_to_memory(CONFIG, mesh, 100 + 32 * 128, lambda *_: large, long_rows_need_more)
    assert fitted.execution.remat == "full"
    assert {remat for remat, length in tried if length == 128} == {"full"}


def test_fit_to_memory_keeps_explicit_settings() -> None:
    fixed = replace(CONFIG, training=replace(CONFIG.training, grad_accum_steps=2))
    assert fit(200.0, fixed)[0] == [2, 2]
    only_later = replace(fixed, stages=(replace(CONFIG.stages[0], grad_accum_steps="auto"),))
    assert fit(100 + 64 * 128, only_later) == ([2, 8], "none")
    least = replace(CONFIG, execution=ExecutionConfig(remat="dots"))
    assert fit(1e6, least) == ([1, 1], "dots")


def test_fewest_finds_the_minimum_in_few_attempts() -> None:
    draw = random.Random(0)
    for _ in range(200):
        counts = sorted(draw.sample(range(1, 300), draw.randint(1, 12)))
        fixed, growing = draw.uniform(0, 50), draw.uniform(1, 5000)
        expected = next((n for n in counts if fixed + growing / n <= 100), None)
        needs = {n: fixed + growing / n for n in counts}
        # With wrong estimates.
        count, attempts = fewest(counts, 100, needs.__getitem__, draw.uniform(0, 50), draw.uniform(1, 5000))
        assert count == expected
        assert len(attempts) <= 5


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("fit")
    config = load_recipe(write_recipe(folder))
    source = write_corpus(folder / "corpus.txt", 30)
    return replace(
        config,
        run_dir=str(folder / "run"),
        log=(),
        mesh=MeshConfig(1, 1, 1),
        data=replace(config.data, sources=(f"lines:{source}",), root=str(folder / "data"), vocab_size=200),
        model=replace(config.model, num_hidden_layers=1),
        optimizer=replace(config.optimizer, warmup_steps=1),
        training=replace(config.training, steps=2, global_batch_size=256, eval_every=2, checkpoint_every=2),
    )


@pytest.mark.long  # compiles real programs; the suite tests the decision
def test_resumed_run_keeps_the_memory_fit(tiny: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real programs on a device that reports less memory than a step without microbatches needs."""
    mesh, content = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), open_data(tiny, no_progress)
    monkeypatch.setattr(step_programs, "device_memory", lambda device: 1e12)
    compiled: list[int] = []
    measure = StepPrograms.compiled_bytes

    def compiled_bytes(programs: StepPrograms, execution: ExecutionConfig, stage: Stage) -> float:
        compiled.append(stage.training.microbatches)
        return measure(programs, execution, stage)

    monkeypatch.setattr(StepPrograms, "compiled_bytes", compiled_bytes)
    plenty = assemble(tiny, content, mesh=mesh)
    assert plenty.config.training.grad_accum_steps == 1 and not compiled, "nothing is compiled where all values fit"
    whole = StepPrograms(plenty.config, mesh, plenty.optimizer)
    with jax.set_mesh(mesh):
        need = measure(whole, plenty.config.execution, make_stages(plenty.config)[0])

    memory = 0.9 * need / USABLE["cpu"]
    monkeypatch.setattr(step_programs, "device_memory", lambda device: memory)
    job = assemble(tiny, content, mesh=mesh)
    assert job.config.training.grad_accum_steps == 2 and job.config.execution.remat == "none"
    assert sorted(compiled) == [1, 2] and f"of {0.9 * need / 2**30:,.2f} GiB" in job.memory_fit
    job.metadata["device_memory"] = memory
    train_alone(job)
    saved = read_metadata(Path(tiny.directory))
    assert saved["config"]["training"]["grad_accum_steps"] == 2

    with alone() as processes:
        for here, expected in ((memory, 2), (2 * memory, 2), (0.5 * memory, "auto")):
            monkeypatch.setattr("bertjax.run.resume_choices.device_memory", lambda device, here=here: here)
            monkeypatch.setattr("bertjax.run.resume_choices.training_mesh", lambda config: mesh)
            kept = keep_choices(tiny, processes)
            assert kept.training.grad_accum_steps == expected
            assert kept.execution.scan_unroll == (1 if expected == 2 else "auto")
        two = make_mesh(MeshConfig(2, 1, 1), jax.devices()[:2])
        monkeypatch.setattr("bertjax.run.resume_choices.training_mesh", lambda config: two)
        assert keep_choices(tiny, processes) == tiny, "another mesh decides again"
        execution = replace(tiny.execution, scan_unroll=2)
        fixed = replace(tiny, execution=execution, training=replace(tiny.training, grad_accum_steps=4))
        assert keep_choices(fixed, processes) == fixed
