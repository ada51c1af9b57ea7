"""The bench measures what it says: the recipe's own step and rows, shorter ones where they would take too long."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.cli.bench import missing_text_reason, open_rows
from bertjax.config import Config, DataConfig, TrainingConfig
from bertjax.input.batches import batch_spec
from bertjax.input.made_up_text import made_up_batches
from bertjax.run.bench import shortened
from bertjax.training.stages import make_stages


@pytest.mark.parametrize(
    ("rows", "accumulate", "tokens", "expected"),
    [
        (2048, 32, 10**9, (2048, 32)),  # affordable
        (2048, 32, 2048 * 128 // 4, (512, 8)),  # fewer microbatches
        (2048, 32, 64 * 128, (64, 1)),
        (2048, 32, 20 * 128, (16, 1)),  # smaller ones
        (2048, 32, 1, (8, 1)),  # a row for each of 8 devices is the least
    ],
)
def test_a_step_that_takes_too_long_has_fewer_rows(rows: int, accumulate: int, tokens: float, expected: tuple) -> None:
    config = Config(training=TrainingConfig(global_batch_size=rows, grad_accum_steps=accumulate))
    (stage,) = make_stages(config)
    training = shortened(stage, 8, tokens).training
    assert (training.global_batch_size, training.grad_accum_steps) == expected


def test_made_up_text_makes_rows_like_any_other() -> None:
    data = DataConfig(sequence_length=64, max_predictions=10, packing="pairs", weights=(1.0, 2.0), vocab_size=500)
    first, again = (made_up_batches(data, 3, 50_000).batch(2, 16) for _ in range(2))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert 0.9 < (first["sequence_ids"] > 0).mean() <= 1
    assert first["input_ids"].max() < 500 and first["cls_positions"].shape == (16, 8)


@pytest.mark.parametrize("made_up", [True, False])
def test_each_stage_has_the_rows_of_its_objectives(made_up: bool, tmp_path: Path) -> None:
    stages = [{"start": 60, "objectives": ["mlm"]}]
    keys = {"data.rows": "full_sentences", "training.objectives": ["clm"], "stages": stages, "data.vocab_size": 200}
    source = write_corpus(tmp_path / "corpus.txt", 40)
    config = bertjax.recipe(write_recipe(tmp_path), keys | {"data.sources": [f"lines:{source}"]})
    config, make_rows, _ = open_rows(replace(config, data=replace(config.data, root=str(tmp_path / "data"))), made_up)
    for stage in make_stages(config):
        assert make_rows(stage).batch(0, 4).keys() == batch_spec(stage.data, 4, stage.training.objectives).keys()


def bench(capsys: pytest.CaptureFixture, folder: Path, *arguments: str) -> tuple[str, dict]:
    recipe = write_recipe(folder)
    recipe.write_text(recipe.read_text().replace("_size=16,", "_size=16, grad_accum_steps=2,"))
    fixed = ["bench", str(recipe), "--data.root", str(folder / "data"), "--seconds", "0.2"]
    assert main([*fixed, "--json", str(folder / "bench.json"), *arguments]) == 0
    return capsys.readouterr().out, json.loads((folder / "bench.json").read_text())


@pytest.mark.long
def test_figures_belong_together(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    said, written = bench(capsys, tmp_path)
    assert "the recipe names no data.sources" in said and "random tokens" in said
    (figures,) = written["stages"]
    steps = figures["steps"]
    assert len(steps["seconds"]) >= 5 and figures["step_seconds_median"] == statistics.median(steps["seconds"])
    assert steps["slots"] == figures["measured"]["training"]["global_batch_size"] * 32
    assert 0.5 < steps["tokens"] / steps["slots"] <= 1
    mean = statistics.fmean(steps["seconds"])
    assert figures["tokens_per_second"] == pytest.approx(steps["tokens"] / mean)
    assert figures["mfu_of_measured"] > 0 and figures["mfu_of_data_sheet"] is None
    filled = steps["tokens"] / steps["slots"]
    assert figures["least_seconds"] == pytest.approx(figures["mfu_of_measured"] * mean / filled)
    assert 0 <= steps["waiting"] < 1 and figures["input_limits"] == (steps["waiting"] > 0.05)
    assert figures["input"]["batches_per_second"] > 0 and figures["program"]["compiled_bytes"] > 10_000
    for row in (
        "tokens a second",
        "step",
        "matmuls alone",
        "MFU",
        "input alone",
        "limited by",
        "compiling",
        "memory",
        "this stage",
    ):
        assert f"\n  {row}" in said
    assert "the whole recipe: " in said
    of_cpu = written["machine"]
    gains = of_cpu["bfloat16"]["flops"] >= 1.2 * of_cpu["measured"]["flops"]
    assert ("--execution.dtype bfloat16" in said) == gains


@pytest.mark.long
def test_the_recipes_own_text_is_used_if_it_is_there(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "corpus.txt", 100)
    said, written = bench(capsys, tmp_path, "--data.sources", f"lines:{source}")
    assert "text: token store" in said and "token store" in written["text"]
    assert written["config"]["model"]["vocab_size"] < 1200  # of the vocabulary that the text has


def test_what_is_missing_of_a_text_is_named(tmp_path: Path) -> None:
    there = write_corpus(tmp_path / "corpus.txt", 2)
    assert missing_text_reason([f"lines:{there}"]) == ""
    assert "nowhere-*.txt" in missing_text_reason([f"lines:{there}", f"lines:{tmp_path}/nowhere-*.txt"])
    assert "data.sources" in missing_text_reason([])
