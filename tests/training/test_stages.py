"""Stages: a run whose rows change on the way equals its stages run one after another."""

from __future__ import annotations

import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import command, digests, finish, stop_after, write_recipe

from bertjax.config import (
    Config,
    DataConfig,
    MeshConfig,
    OptimizerConfig,
    StageConfig,
    TrainingConfig,
    from_dict,
    to_dict,
)
from bertjax.input.batches import RowBatches
from bertjax.input.training_data import open_training_data
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.run.checkpoint import read_metadata
from bertjax.run.checks import preflight
from bertjax.run.compatibility import check_compatible
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import read_metrics
from bertjax.storage.progress import no_progress
from bertjax.text.store.format import TokenStore
from bertjax.training.objectives import choose
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.stages import make_stages, stage_at
from bertjax.training.state import draw_blueprint, init_state
from bertjax.training.step import make_train_step

pytestmark = pytest.mark.run

KEEP = ("--training.keep-last", "20", "--training.checkpoint-every", "20")
SIXTY = ("--training.steps", "60")
SECOND = "StageConfig(start=40, sequence_length=24, max_predictions=4, masking='phrases', global_batch_size=4)"
THIRD = (
    "StageConfig(start=90, sequence_length=16, masking='entities', learning_rate=1e-3, warmup_steps=5, "
    "grad_accum_steps=2)"
)


def config(*stages: StageConfig, steps: int = 1000) -> Config:
    return Config(
        data=DataConfig(sequence_length=128, max_predictions=20),
        training=TrainingConfig(steps=steps, global_batch_size=256, grad_accum_steps=1),
        optimizer=OptimizerConfig(warmup_steps=100),
        stages=stages,
    )


def test_run_without_stages_is_one_stage() -> None:
    (only,) = make_stages(config())
    assert (only.start, only.stop, only.seed) == (0, 1000, 0)
    assert only.data.sequence_length == 128


def test_stage_inherits_what_it_does_not_set() -> None:
    first, second, third = make_stages(
        config(
            StageConfig(start=600, sequence_length=512, max_predictions=77),
            StageConfig(start=900, global_batch_size=128, grad_accum_steps=4, masking="words"),
        )
    )
    assert [s.data.masking for s in (first, second, third)] == ["tokens", "tokens", "words"]
    assert [(s.start, s.stop) for s in (first, second, third)] == [(0, 600), (600, 900), (900, 1000)]
    assert [s.data.sequence_length for s in (first, second, third)] == [128, 512, 512]
    assert [s.data.max_predictions for s in (first, second, third)] == [20, 77, 77]
    assert [s.training.global_batch_size for s in (first, second, third)] == [256, 256, 128]
    assert [s.training.grad_accum_steps for s in (first, second, third)] == [1, 1, 4]
    assert len({s.seed for s in (first, second, third)}) == 3
    assert stage_at((first, second, third), 0) is first
    assert stage_at((first, second, third), 600) is first
    assert stage_at((first, second, third), 601) is second
    assert stage_at((first, second, third), 1000) is third


def test_stage_may_change_the_kind_of_rows() -> None:
    data = DataConfig(sequence_length=128, rows="doc_sentences", packing="pairs", pairs_per_row=8)
    longer = StageConfig(start=600, sequence_length=512, rows="documents", pairs_per_row=32)
    run_config = replace(config(longer, StageConfig(start=900)), data=data)
    run_config = replace(run_config, training=replace(run_config.training, objectives=("mlm",)))
    stages = make_stages(run_config)
    assert [(s.data.rows, s.data.pairs_per_row) for s in stages] == [("doc_sentences", 8), *[("documents", 32)] * 2]
    assert preflight(run_config) == run_config


def test_stage_may_change_masking_and_mixture() -> None:
    """Like mmBERT's three phases: 30, 15 and 5 % of the tokens, and a temperature of 0.7, 0.5 and 0.3."""
    data = DataConfig(sources=("text:a", "text:b"), mask_probability=0.3, max_predictions=39, temperature=0.7)
    second = StageConfig(start=600, mask_probability=0.15, temperature=0.5, mask_count="random_round", keep_share=0.0)
    third = StageConfig(start=900, mask_probability=0.05, temperature=1.0, weights=(1.0, 0.0), random_share=0.0)
    run_config = replace(config(second, third), data=data)
    stages = [stage.data for stage in make_stages(run_config)]
    assert [(one.mask_probability, one.mask_count) for one in stages] == [
        (0.3, "round"), (0.15, "random_round"), (0.05, "random_round")
    ]  # fmt: skip
    assert [(one.keep_share, one.random_share) for one in stages] == [(0.1, 0.1), (0.0, 0.1), (0.0, 0.0)]
    assert [(one.temperature, one.weights) for one in stages] == [(0.7, ()), (0.5, ()), (1.0, (1.0, 0.0))]
    with pytest.raises(ValueError, match=r"stages.0: data.weights=\(1.0,\): give one for each of the 2 data.sources"):
        make_stages(replace(config(StageConfig(start=600, weights=(1.0,), temperature=1.0)), data=data))


def test_rows_of_a_stage_follow_its_masking_and_mixture(tmp_path: Path) -> None:
    sources = tuple(f"lines:{write_corpus(tmp_path / f'{name}.txt', 60, n)}" for n, name in enumerate("ab"))
    data = DataConfig(sources=sources, root=str(tmp_path / "data"), vocab_size=600, sequence_length=32, workers=1,
                      mask_probability=0.3, max_predictions=10)  # fmt: skip
    stage = StageConfig(start=600, mask_probability=0.05, weights=(0.0, 1.0))
    first, second = make_stages(replace(config(stage), data=data))
    content = open_training_data([first.data, second.data], no_progress)
    assert second.data == replace(data, mask_probability=0.05, weights=(0.0, 1.0))
    rows = [content.train(one.data, one.seed) for one in (first, second)]
    batches = [one.batch(2, 64) for one in rows]
    rates = [batch["mlm_weights"].sum() / (batch["sequence_ids"] > 0).sum() for batch in batches]
    assert rates == pytest.approx([0.3, 0.05], abs=0.02)
    assert rows[0].shares is None and rows[1].shares.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (StageConfig(start=600, rows="documents"), r"data.rows='documents' with .*: such rows have no second segment"),
        (StageConfig(start=600, pairs_per_row=0), r"stages.0: data.pairs_per_row=0 must be a finite number"),
    ],
)
def test_invalid_rows_of_a_stage_are_refused(stage: StageConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preflight(config(stage))


@pytest.mark.parametrize("change", [{"rows": "documents"}, {"pairs_per_row": 4}])
def test_rows_of_a_stage_are_part_of_the_run(change: dict) -> None:
    was, now = config(StageConfig(start=600)), config(StageConfig(start=600, **change))
    saved = to_dict(was)
    for stage in saved["stages"]:
        del stage["rows"], stage["pairs_per_row"]  # like a checkpoint older than these keys
    assert check_compatible({"config": saved}, {"config": to_dict(was)}) == []
    with pytest.raises(ValueError, match=r"the checkpoint belongs to another run:\n  stages: "):
        check_compatible({"config": saved}, {"config": to_dict(now)})


def test_schedule_continues_without_a_new_learning_rate() -> None:
    whole = make_schedule(OptimizerConfig(warmup_steps=100), 1000)
    for stage in make_stages(config(StageConfig(start=600, sequence_length=512))):
        for step in (0, 99, 100, 599, 600, 999):
            assert float(stage.schedule()(jnp.int32(step))) == float(whole(jnp.int32(step)))


def test_stage_with_a_learning_rate_warms_up_again() -> None:
    first, second = make_stages(config(StageConfig(start=600, learning_rate=3e-4, warmup_steps=50)))
    before = make_schedule(OptimizerConfig(warmup_steps=100), 600)
    after = make_schedule(OptimizerConfig(learning_rate=3e-4, warmup_steps=50), 400)
    for step in (0, 100, 599):
        assert float(first.schedule()(jnp.int32(step))) == float(before(jnp.int32(step)))
    for step in (0, 25, 50, 399):
        assert float(second.schedule()(jnp.int32(600 + step))) == float(after(jnp.int32(step)))


def test_stage_ends_at_its_final_share() -> None:
    linear = OptimizerConfig(warmup_steps=100, final_share=0.1, schedule="cosine")
    constant = StageConfig(start=600, learning_rate=1e-5, final_share=1.0)
    first, second = make_stages(replace(config(constant), optimizer=linear))
    assert float(first.schedule()(jnp.int32(599))) < 1.1e-5
    assert {float(second.schedule()(jnp.int32(step))) for step in (600, 700, 999)} == {float(np.float32(1e-5))}


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([StageConfig(start=0)], r"stages.0.start=0 is not after the first step"),
        ([StageConfig(start=1000)], r"training.steps=1,000 is not after stages.0.start"),
        ([StageConfig(start=500), StageConfig(start=400)], r"stages.1.start=400 is not after stages.0.start \(500\)"),
        ([StageConfig(start=500, sequence_length=1024)], r"sequence_length=1024 is beyond the model's positions"),
        ([StageConfig(start=500, global_batch_size=10, grad_accum_steps=4)], r"global_batch_size=10 is not divisible"),
        ([StageConfig(start=500, warmup_steps=4)], r"stages.0.warmup_steps=4 requires a new schedule"),
        ([StageConfig(start=500, decay_steps=4)], r"stages.0.decay_steps=4 requires a new schedule"),
        ([StageConfig(start=500, final_share=1.0)], r"stages.0.final_share=1.0 requires a new schedule"),
        ([StageConfig(start=500, learning_rate=1e-3, final_share=2.0)], r"stages.0: optimizer.final_share=2.0 must be"),
        (
            [StageConfig(start=500, rope_theta=1e5)],
            r"rope_theta=100000 with model.position_embedding='learned'",
        ),
        (
            [StageConfig(start=500, learning_rate=1e-3, warmup_steps=500)],
            r"warmup_steps=500 must be below training.steps=500",
        ),
    ],
)
def test_invalid_stages_are_refused(stages: list[StageConfig], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_stages(config(*stages))


def test_stages_survive_a_round_trip_through_json() -> None:
    run_config = config(StageConfig(start=600, sequence_length=512, learning_rate=1e-5))
    assert from_dict(to_dict(run_config)) == run_config
    with pytest.raises(ValueError, match=r"stages.0.strat is unknown; did you mean stages.0.start"):
        from_dict({"stages": [{"strat": 3}]})


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Recipe, source, and the directory of an uninterrupted run of three stages."""
    return whole_run(tmp_path_factory.mktemp("stages"), f"{SECOND}, {THIRD}")


@pytest.fixture(scope="module")
def in_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The same for two stages."""
    return whole_run(tmp_path_factory.mktemp("stages"), f"{SECOND},", *SIXTY)


def whole_run(folder: Path, stages: str, *overrides: str) -> tuple[Path, Path, Path]:
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 300)
    words = [line.split() for line in source.read_text().splitlines() if line]
    units = {kind: {" ".join(line[at : at + 2]) for line in words} for kind, at in (("phrase", 1), ("entity", 2))}
    lines = [f"{unit}\t{kind}\n" for kind in units for unit in units[kind]]  # phrases and entities overlap
    (folder / "units.txt").write_text("".join(sorted(lines)))
    text = recipe.read_text().replace("OptimizerConfig, ", "OptimizerConfig, StageConfig, ", 1)
    text = text.replace("DataConfig(", f"DataConfig(units='list:{folder}/units.txt', ")
    recipe.write_text(text.replace("        training=", f"        stages=({stages}),\n        training="))
    finish(command(recipe, source, folder / "whole", *KEEP, *overrides), folder / "whole.log")
    return recipe, source, folder / "whole"


@pytest.mark.long
def test_staged_run_equals_its_stages_run_by_hand(staged: tuple[Path, Path, Path]) -> None:
    """The same steps by hand: each stage has its step and its batches, and hands its state on."""
    recipe, _, run_dir = staged
    run = from_dict(read_metadata(run_dir)["config"])
    (store_dir,) = (recipe.parent / "data").glob("store-*")
    store = TokenStore.open(store_dir)
    tokenizer, optimizer = store.tokenizer(), make_optimizer(run.optimizer)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    levels = ("tokens", "phrases", "entities")
    plan = [  # start, stop, rows, length, predictions, microbatches, schedule's start, its length, peak, warm-up
        (0, 40, 8, 32, 5, 1, 0, 90, 2e-3, 10),
        (40, 90, 4, 24, 4, 1, 0, 90, 2e-3, 10),
        (90, 120, 4, 16, 4, 2, 90, 30, 1e-3, 5),
    ]
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(run.model, optimizer, mesh)
        state = init_state(blueprint, run.model, optimizer, 0)
        losses = []
        for number, (start, stop, rows, length, predictions, parts, begins, lasts, peak, warmup) in enumerate(plan):
            rate = make_schedule(OptimizerConfig(learning_rate=peak, warmup_steps=warmup), lasts)
            step = make_train_step(
                blueprint,
                choose(("mlm", "nsp")),
                optimizer,
                lambda k, rate=rate, begins=begins: rate(k - begins),
                clip_norm=1.0,
                grad_accum_steps=parts,
                dropout_seed=0,
            )
            data = replace(run.data, sequence_length=length, max_predictions=predictions, masking=levels[number])
            batches = RowBatches(store.split("train"), tokenizer, data, make_stages(run)[number].seed)
            for k in range(stop - start):
                state, metrics = step(state, to_global(mesh, batches.batch(k, rows)))
                losses.append(float(metrics["loss"]))
    assert int(state.step) == 120
    logged = [(r["step"], r["train/loss"]) for r in read_metrics(run_dir / "metrics.jsonl") if "train/loss" in r]
    first = 0
    for step, loss in logged:
        assert np.mean(losses[first:step]) == pytest.approx(loss, rel=1e-6), step
        first = step
    assert first == 120
    # Not bit for bit: this process has eight devices and the run had one, and XLA splits its loops accordingly.
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5),
        jax.device_get(state.params),
        jax.device_get(load_run(run_dir).params),
    )


@pytest.mark.long
def test_staged_run_killed_around_boundaries_has_equal_bits(staged: tuple[Path, Path, Path], tmp_path: Path) -> None:
    recipe, source, reference = staged
    rng = random.Random(3)
    log, arguments = tmp_path / "log", command(recipe, source, tmp_path / "killed")
    killed = [stop_after(arguments, log, rng.uniform(0.0, 2.5), signal.SIGKILL) is not None for _ in range(2)]
    finish(arguments, log)
    assert any(killed)
    assert digests(tmp_path / "killed") == digests(reference)


def test_run_killed_at_a_boundary_continues_with_the_next_stage(
    in_two: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    recipe, source, reference = in_two
    run_dir, log = tmp_path / "run", tmp_path / "log"
    arguments = command(recipe, source, run_dir, *KEEP, *SIXTY)
    shutil.copytree(reference, run_dir)
    shutil.rmtree(run_dir / "checkpoints" / "60")
    finish(arguments, log)
    assert "resuming" in log.read_text() and "at step 40" in log.read_text()
    assert digests(run_dir) == digests(reference)


def test_changed_stage_is_another_run(in_two: tuple[Path, Path, Path], tmp_path: Path) -> None:
    recipe, source, run_dir = in_two
    other = tmp_path / "recipe.py"
    other.write_text(recipe.read_text().replace("sequence_length=24", "sequence_length=20"))
    arguments = command(other, source, run_dir, *SIXTY, "--data.root", str(recipe.parent / "data"))
    with pytest.raises(AssertionError, match=r"checkpoint belongs to another run"):
        finish(arguments, tmp_path / "log")
