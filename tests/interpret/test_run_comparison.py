"""`compare`: runs on the same held-out rows, and on the predictions of a task."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exported_models import trained_model
from generated_corpus import write_corpus
from small_tasks import load_content, small_config, small_start, write_classes, write_questions, write_tags
from tiny_runs import command, finish, write_recipe

from bertjax.__main__ import main
from bertjax.convert.sources import write_run
from bertjax.finetune.run import finetune
from bertjax.interpret import run_comparison
from bertjax.interpret.comparison_page import _columns
from bertjax.interpret.paired_bootstrap import Difference
from bertjax.interpret.run_comparison import compare_runs
from bertjax.run.run_directory import TrainedModel, load_run
from bertjax.run.telemetry import read_metrics
from bertjax.runtime.processes import alone
from bertjax.storage.progress import no_progress

pytestmark = [pytest.mark.run, pytest.mark.usefixtures("one_device")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `one` of 16 steps, also measured and saved at step 4, and an untrained run `other`."""
    folder = tmp_path_factory.mktemp("compared")
    recipe = write_recipe(folder)
    few = ["--training.eval-rows", "24", "--optimizer.warmup-steps", "1", "--data.vocab-size", "600"]
    few += ["--training.eval-every", "4", "--training.checkpoint-every", "4", "--training.keep-last", "20"]
    text = write_corpus(folder / "one.txt", 80)
    finish(command(recipe, text, folder / "one", *few, "--training.steps", "16"), folder / "one.log")
    write_run(trained_model(folder / "other"))
    return folder


@pytest.fixture(scope="module")
def early(runs: Path) -> str:
    return str(runs / "one" / "checkpoints" / "4")


def test_losses_equal_those_in_the_log(runs: Path, early: str) -> None:
    comparison = compare_runs([early, str(runs / "one")], 0, no_progress)
    assert (comparison.steps, comparison.examples) == ((4, 16), "24 held-out rows of 32 tokens")
    figures = {figure.name: figure for figure in comparison.figures}
    logged = {one["step"]: one for one in read_metrics(runs / "one" / "metrics.jsonl") if "eval/mlm_loss" in one}
    for place, step in enumerate((4, 16)):
        for name, key in (("MLM loss (nats)", "eval/mlm_loss"), ("MLM accuracy", "eval/mlm_accuracy"),
                          ("NSP accuracy", "eval/nsp_accuracy")):  # fmt: skip
            # The training's own average divides by a weight that is 1e-5 larger.
            assert figures[name].values[place] == pytest.approx(logged[step][key], rel=1e-5)
    loss = figures["MLM loss (nats)"]
    (difference,) = loss.differences
    assert difference.value == pytest.approx(loss.values[1] - loss.values[0], abs=1e-9)
    assert difference.low < difference.value < difference.high < 0 and difference.p_value < 0.01, "16 steps are better"


def test_verb_writes_a_table_and_a_page(
    runs: Path, early: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, page = str(runs / "one"), tmp_path / "page.html"
    assert main(["compare", one, early, f"{one}/checkpoints/16", "--rows", "12", "--html", str(page)]) == 0
    output = capsys.readouterr().out
    assert "on 12 held-out rows of 32 tokens" in output and f"page: {page}" in output
    assert re.search(rf"MLM loss \(nats\): {re.escape(early)} is worse than {re.escape(one)} by \d", output)
    assert f"{one}/checkpoints/16 and {one} are equal" in output
    assert "<script" not in page.read_text() and early in page.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one"], "one: give two runs or more, each once"),
        (["one", "one"], "give two runs or more, each once"),
        (["one", "other"], "other has another vocabulary than"),
        (["one", "nowhere"], "nowhere: no checkpoint there"),
        (["one", "other", "--rows", "-1"], "--rows -1: give a number of rows above 0"),
    ],
)
def test_incomparable_runs_are_refused(
    runs: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *(word if word[0] == "-" else str(runs / word) for word in words)]) == 1
    assert message in capsys.readouterr().err


def test_compare_uses_the_run_store(runs: Path, early: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`evaluate` and `compare` use the run's own store; without it, changed text is refused."""
    text, moved, root = runs / "one.txt", tmp_path / "one.txt", runs / "data"
    original, one = text.read_text(), str(runs / "one")
    assert main(["evaluate", one]) == 0
    before = capsys.readouterr().out
    text.rename(moved)
    try:
        text.write_text(original.replace("the ", "tho "))
        assert main(["evaluate", one]) == 0
        assert capsys.readouterr().out == before
        assert main(["compare", one, early]) == 0
        capsys.readouterr()
        root.rename(tmp_path / "data")
        for words in (["evaluate", one], ["compare", one, early]):
            assert main(words) == 1
            assert f"{one}: the vocabulary has changed since this run began" in capsys.readouterr().err
        shutil.rmtree(root)
        (tmp_path / "data").rename(root)
    finally:
        moved.replace(text)
    assert main(["evaluate", one]) == 0


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two fine-tuned runs of one task, `much` and `little`."""
    folder = tmp_path_factory.mktemp("tuned")
    start, data = small_start(folder / "start"), write_classes(folder / "data", 64, 32)
    for name, epochs in (("much", 2.0), ("little", 0.5)):
        config = small_config("classification", start, data, folder / name, epochs=epochs)
        with alone() as processes:
            finetune(config, start, load_content(config, start), processes, lambda _: None)
    return folder


@pytest.mark.long
def test_predictions_of_a_task_are_compared(tuned: Path) -> None:
    comparison = compare_runs([str(tuned / "little"), str(tuned / "much")], 0, no_progress)
    assert comparison.examples == "32 examples of dev of classification"
    accuracy, f1 = comparison.figures
    assert (accuracy.name, f1.name) == ("accuracy", "macro_f1")
    gold = [row["label"] for row in read_tsv(tuned / "data" / "dev.tsv")]
    for value, run in zip(accuracy.values, ("little", "much"), strict=True):
        predicted = [row["prediction"] for row in read_tsv(tuned / run / "predictions" / "dev.tsv")]
        assert value == pytest.approx(np.mean([one == other for one, other in zip(gold, predicted, strict=True)]))
    (difference,) = accuracy.differences
    assert difference.low <= difference.value <= difference.high and 0 < difference.p_value <= 1


def write_entities(folder: Path, train: int, dev: int) -> Path:
    """Like `write_tags`, with an entity for every word, and a line separator inside one word."""
    for path in write_tags(folder, train, dev).glob("*.conll"):
        entities = re.sub(r"(\S+)$", r"B-\1", path.read_text(), flags=re.M).replace(" ", "\t")
        path.write_text(entities.replace("saw", "s\u2028aw"))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("name", "write"), [("ner", write_entities), ("pos", write_tags), ("squad", write_questions)])
def test_tags_and_answers_are_compared(name: str, write: Callable, tmp_path: Path) -> None:
    """The values equal the runs' own, and lie inside the intervals."""
    start, data = small_start(tmp_path / "start"), write(tmp_path / "data", 32, 12)
    for run, epochs in (("little", 0.5), ("much", 3.0)):
        config = small_config(name, start, data, tmp_path / run, epochs=epochs)
        with alone() as processes:
            finetune(config, start, load_content(config, start), processes, lambda _: None)
    comparison = compare_runs([str(tmp_path / "little"), str(tmp_path / "much")], 0, no_progress)
    assert comparison.examples.startswith("12 examples of dev")
    for figure in comparison.figures:
        for value, run in zip(figure.values, ("little", "much"), strict=True):
            (path,) = (tmp_path / run).glob("results.json")
            assert value == pytest.approx(
                json.loads(path.read_text())["result"]["figures"][f"eval/{figure.name}"], abs=1e-9
            )
        (difference,) = figure.differences
        assert difference.low <= difference.value <= difference.high and 0 < difference.p_value <= 1
    (predictions,) = [path for path in (tmp_path / "much" / "predictions").rglob("*") if path.name in PREDICTION_EDITS]
    predictions.write_text(predictions.read_text().replace(*PREDICTION_EDITS[predictions.name], 1))
    with pytest.raises(ValueError, match="not one prediction for each example of the task; fine-tune again"):
        compare_runs([str(tmp_path / "little"), str(tmp_path / "much")], 0, no_progress)


# A file of predictions -> a replacement that makes it belong to other examples.
PREDICTION_EDITS = {"dev.conll": ("\t", "x\t"), "predictions.json": ('": "', 'x": "')}


def test_held_out_rows_count_once(runs: Path, early: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeated text is not further evidence: each row counts once, even if a run evaluates more rows than exist."""
    with pytest.raises(ValueError, match=r"has [0-9,]+ held-out rows") as refused:
        compare_runs([str(runs / "one"), early], 9_999, no_progress)
    available = re.search(r"has ([0-9,]+) held-out rows", str(refused.value))[1]

    def load_with_more_rows(path: str) -> TrainedModel:
        model = load_run(path)
        training = replace(model.config.training, eval_rows=5_000)
        return replace(model, config=replace(model.config, training=training))

    monkeypatch.setattr(run_comparison, "load_run", load_with_more_rows)
    assert compare_runs([str(runs / "one"), early], 0, no_progress).examples.startswith(f"{available} held-out rows")


def read_tsv(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.mark.long
def test_compare_rejects_changed_data_files(tuned: Path) -> None:
    dev = tuned / "data" / "dev.tsv"
    whole = dev.read_text()
    head, first, *others = whole.splitlines()
    dev.write_text("\n".join([head, *others, first]) + "\n")
    try:
        with pytest.raises(ValueError, match="little: its data files have changed since it predicted; run its fine"):
            compare_runs([str(tuned / "little"), str(tuned / "much")], 0, no_progress)
    finally:
        dev.write_text(whole)


@pytest.mark.long  # the suite compares pretraining runs
def test_compare_rejects_other_predictions(tuned: Path, runs: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"runs of several kinds: .*one \(pretraining\), .*much \(sequence\)"):
        compare_runs([str(runs / "one"), str(tuned / "much")], 0, no_progress)
    shutil.copytree(tuned / "much", tmp_path / "copy")
    predictions = tmp_path / "copy" / "predictions" / "dev.tsv"
    lines = predictions.read_text().splitlines()
    predictions.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(ValueError, match="not one prediction for each example of the task; fine-tune again"):
        compare_runs([str(tuned / "little"), str(tmp_path / "copy")], 0, no_progress)
    predictions.unlink()
    with pytest.raises(ValueError, match="no such file; it is written when fine-tuning ends"):
        compare_runs([str(tuned / "little"), str(tmp_path / "copy")], 0, no_progress)


def test_undefined_figures_have_no_p_value() -> None:
    """For example the correlation of a run that predicts a constant."""
    nan = float("nan")
    figure = run_comparison.Compared("pearson", (0.9, nan), (Difference(0.9, nan, nan, nan, nan),), False, ".3f")
    assert _columns(figure.differences[0], figure) == ("–", "–", "–")
    known = Difference(0.9, 0.8, -0.2, -0.05, 0.0001)
    assert _columns(known, figure) == ("−0.100", "−0.200 to −0.050", "< 0.001")
