"""Networks other than the paper's train, export and import with the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import command, finish, write_recipe

from bertjax.convert.compare import compare_with_transformers
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.tf1.tf1_format import export_tensorflow, read_tensorflow
from bertjax.model.parameters import named_arrays
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import curves, read_metrics

FEW = ("--training.global-batch-size", "8", "--training.eval-rows", "8", "--model.hidden-act", "gelu_tanh")
LONG = ("--data.sequence-length", "560", "--data.max-predictions", "80", "--model.max-position-embeddings", "640")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt", 900)
    documents = path.read_text().split("\n\n")
    joined = ["\n".join(documents[first : first + 12]) for first in range(0, len(documents), 12)]
    path.write_text("\n\n".join(joined) + "\n")
    return path


def steps(number: int) -> tuple[str, ...]:
    return ("--training.steps", str(number), "--optimizer.warmup-steps", str(number // 2))


def weights(run: Path) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in named_arrays(load_run(run).params).items()}


def assert_same(again: ForeignModel, ours: dict[str, np.ndarray]) -> None:
    theirs = named_arrays(again.params)
    for parameter, array in ours.items():
        np.testing.assert_array_equal(theirs[parameter], array, parameter)


@pytest.mark.long
def test_nsp_alone_trains_reports_and_exports(corpus: Path, tmp_path: Path) -> None:
    recipe, log, run = write_recipe(tmp_path), tmp_path / "log", tmp_path / "run"
    finish(command(recipe, corpus, run, *FEW, *steps(6), "--training.objectives", "nsp"), log)
    output, figures = log.read_text(), curves(read_metrics(run / "metrics.jsonl"))
    assert "NSP accuracy" in output and "MLM" not in output and "[MASK] in held-out sentences" not in output
    assert "eval/nsp_accuracy" in figures and "eval/mlm_loss" not in figures
    assert "NSP accuracy" in (run / "report.html").read_text(encoding="utf-8")
    assert_same(read_huggingface(run / "huggingface"), weights(run))


@pytest.mark.long
def test_long_rows_start_from_512_positions(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    recipe, log = write_recipe(tmp_path), tmp_path / "log"
    paper = ("--model.max-position-embeddings", "512")
    finish(command(recipe, corpus, tmp_path / "short", *FEW, *paper, *steps(4)), log)
    start = ("--init-from", str(tmp_path / "short"), "--model.type-vocab-size", "4")
    finish(command(recipe, corpus, tmp_path / "long", *FEW, *LONG, *steps(6), *start), log)
    output = log.read_text()
    assert "the position table has 640 rows: the source's 512, repeated from the start" in output
    assert "segments from 2 on start as copies of segment 0" in output
    trained = weights(tmp_path / "long")
    assert trained["encoder/embeddings/position"].shape == (640, 32)
    assert trained["encoder/embeddings/token_type"].shape == (4, 32)
    before = weights(tmp_path / "short")["encoder/embeddings/position"]
    moved = np.abs(trained["encoder/embeddings/position"] - np.resize(before, (640, 32))).max(axis=1)
    assert moved[:560].min() > 10 * moved[560:].max(), "positions up to 560 are trained, later ones only decay"
    assert_same(read_huggingface(tmp_path / "long" / "huggingface"), trained)
    model = load_run(tmp_path / "long")
    assert_same(read_tensorflow(export_tensorflow(model, tmp_path / "tf1"), lowercase=True), trained)


@pytest.mark.long  # the suite evaluates by source in tests/training/test_evaluate.py
def test_mixture_is_evaluated_by_source(corpus: Path, tmp_path: Path) -> None:
    recipe, log, run = write_recipe(tmp_path), tmp_path / "log", tmp_path / "run"
    other = write_corpus(tmp_path / "other.txt", 300, seed=5)
    arguments = command(recipe, corpus, run, *FEW, *steps(6), "--training.eval-every", "3")
    arguments[arguments.index("--data.root") : arguments.index("--data.root")] = [
        f"lines:{other}",
        "--data.weights",
        "1",
        "3",
    ]
    finish([*arguments, "--data.packing", "pairs"], log)
    figures = curves(read_metrics(run / "metrics.jsonl"))
    losses = [figures[f"eval/{name}mlm_loss"][1] for name in ("", "source_0/", "source_1/")]
    assert [len(values) for values in losses] == [2, 2, 2]
    assert len({values[-1] for values in losses}) == 3


@pytest.mark.long
def test_causal_model_with_sinusoids_learns(corpus: Path, tmp_path: Path) -> None:
    recipe, log, run = write_recipe(tmp_path), tmp_path / "log", tmp_path / "run"
    changed = ("--model.causal", "True", "--data.predict", "next", "--training.objectives", "mlm")
    fixed = ("--model.position-embedding", "sinusoidal", "--training.eval-every", "100", *steps(200))
    finish(command(recipe, corpus, run, *changed, *fixed), log)
    assert "encoder/embeddings/position" not in weights(run)
    figures = curves(read_metrics(run / "metrics.jsonl"))
    assert figures["eval/mlm_loss"][1][-1] < figures["baseline/no_context_loss"][1][-1] - 0.5
    assert "[MASK]" not in (run / "huggingface" / "README.md").read_text()
    compare_with_transformers(load_run(run), run / "huggingface")
    again = read_huggingface(run / "huggingface")
    assert again.config.causal and again.config.position_embedding == "learned"
    assert_same(again, weights(run))
    done = subprocess.run(
        [sys.executable, "-m", "bertjax", "fill-mask", str(run), "a [MASK]"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "model.causal=True: it predicts the next token" in done.stderr
