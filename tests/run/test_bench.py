"""The benchmark measures the recipe's own step and rows, with fewer rows if a step would take too long."""

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
        (2048, 32, 20 * 128, (16, 1)),  # a smaller microbatch
        (2048, 32, 1, (8, 1)),  # at least a row for each of 8 devices
    ],
)
def test_shortened_reduces_the_rows_of_slow_steps(rows: int, accumulate: int, tokens: float, expected: tuple) -> None:
    config = Config(training=TrainingConfig(global_batch_size=rows, grad_accum_steps=accumulate))
    (stage,) = make_stages(config)
    training = shortened(stage, 8, tokens).training
    assert (training.global_batch_size, training.grad_accum_steps) == expected


def test_made_up_batches_are_reproducible_and_packed() -> None:
    data = DataConfig(sequence_length=64, max_predictions=10, packing="pairs", weights=(1.0, 2.0), vocab_size=500)
    first, again = (made_up_batches(data, 3, 50_000).batch(2, 16) for _ in range(2))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert 0.9 < (first["sequence_ids"] > 0).mean() <= 1
    assert first["input_ids"].max() < 500 and first["cls_positions"].shape == (16, 8)


@pytest.mark.parametrize("made_up", [True, False])
def test_open_rows_follows_the_objectives_of_each_stage(made_up: bool, tmp_path: Path) -> None:
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
    command = ["bench", str(recipe), "--data.root", str(folder / "data"), "--seconds", "0.2"]
    assert main([*command, "--json", str(folder / "bench.json"), *arguments]) == 0
    return capsys.readouterr().out, json.loads((folder / "bench.json").read_text())


@pytest.mark.long
def test_bench_figures_are_consistent(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    output, report = bench(capsys, tmp_path)
    assert "the recipe names no data.sources" in output and "random tokens" in output
    (figures,) = report["stages"]
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
        assert f"\n  {row}" in output
    assert "the whole recipe: " in output
    machine = report["machine"]
    bfloat16_is_faster = machine["bfloat16"]["flops"] >= 1.2 * machine["measured"]["flops"]
    assert ("--execution.dtype bfloat16" in output) == bfloat16_is_faster


@pytest.mark.long
def test_bench_uses_the_text_of_the_recipe(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    source = write_corpus(tmp_path / "corpus.txt", 100)
    output, report = bench(capsys, tmp_path, "--data.sources", f"lines:{source}")
    assert "text: token store" in output and "token store" in report["text"]
    assert report["config"]["model"]["vocab_size"] < 1200  # limited by the text


def test_missing_text_reason_names_the_missing_source(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 2)
    assert missing_text_reason([f"lines:{corpus}"]) == ""
    assert "nowhere-*.txt" in missing_text_reason([f"lines:{corpus}", f"lines:{tmp_path}/nowhere-*.txt"])
    assert "data.sources" in missing_text_reason([])
