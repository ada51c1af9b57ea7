"""Fine-tuning runs learn, stop early, resume, and are evaluated again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from small_tasks import load_content, sentences, small_config, write_classes, write_questions, write_tags

from bertjax.config import FinetuneConfig
from bertjax.families.networks import abstract_network
from bertjax.finetune.job import resolved
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.run import Result, Start, finetune, initial_params
from bertjax.run.checkpoint import BEST, DIRECTORY, read_metadata
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.runtime.processes import alone
from bertjax.storage.remote import RemotePath

pytestmark = pytest.mark.usefixtures("one_device")


def run(config: FinetuneConfig, start: Start, lines: list[str] | None = None) -> Result:
    with alone() as processes:
        return finetune(
            config, start, load_content(config, start), processes, (lines if lines is not None else []).append
        )


def evaluations(directory: str, figure: str) -> dict[int, float]:
    records = read_metrics(Path(directory) / METRICS_FILE)
    return {record["step"]: record[figure] for record in records if figure in record}


@pytest.mark.parametrize(
    ("task", "write", "figure", "least"),
    [
        ("pos", write_tags, "eval/accuracy", 0.95),
        ("squad", write_questions, "eval/exact_match", 0.9),
    ],
)
@pytest.mark.long  # the suite has classification, below
def test_task_is_learned_and_predicted(
    start: Start, tmp_path: Path, task: str, write: Callable[[Path], Path], figure: str, least: float
) -> None:
    config = small_config(task, start, write(tmp_path / "data"), tmp_path / "run", epochs=12)
    config = replace(config, training=replace(config.training, eval_every=1000))
    require_learned(config, run(config, start), figure, least)


def require_learned(config: FinetuneConfig, result: Result, figure: str, least: float) -> None:
    """Require a figure, predictions, a loadable model, and a report."""
    folder = Path(config.run_dir)
    assert result.figures[figure] >= least, result
    assert evaluations(result.directory, figure)[result.step] == pytest.approx(result.figures[figure])
    assert result.predictions and all((folder / name).stat().st_size for name in result.predictions)
    model = load_run(result.directory)
    assert isinstance(model.config, FinetuneConfig) and model.step == result.step
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert f"<b>{result.figures[figure]:.1%}</b>" in page and "Right, most certain first" in page
    assert page.count("<figcaption>") >= 3


@pytest.fixture(scope="module")
def patient(start: Start, tmp_path_factory: pytest.TempPathFactory) -> tuple[FinetuneConfig, Result]:
    """A run that stopped early, with its data next to it."""
    folder = tmp_path_factory.mktemp("patient")
    config = small_config("classification", start, write_classes(folder / "data"), folder / "run", epochs=40)
    config = replace(config, task=replace(config.task, patience=3))
    return config, run(config, start)


def test_patience_stops_and_keeps_the_best(start: Start, patient: tuple[FinetuneConfig, Result]) -> None:
    (config, result), folder = patient, Path(patient[0].run_dir)
    seen = evaluations(result.directory, "eval/accuracy")
    best = next(step for step, value in seen.items() if value == max(seen.values()))
    assert max(seen) < resolved(config, load_content(config, start)).training.steps
    assert list(seen).index(max(seen)) - list(seen).index(best) == 3
    assert result.step == best and result.figures["eval/accuracy"] == max(seen.values())
    assert [path.name for path in (folder / BEST).iterdir() if path.name.isdecimal()] == [str(best)]
    assert read_metadata(folder / DIRECTORY)["step"] == max(seen)
    require_learned(config, result, "eval/accuracy", 0.9)


def test_finished_run_is_not_repeated_but_evaluated(start: Start, patient: tuple[FinetuneConfig, Result]) -> None:
    """Changes the data of the run, so that it must be the last test of the run."""
    (config, first), lines = patient, list[str]()
    data, folder = Path(config.task.data), Path(config.run_dir)
    results = folder / "results.json"
    before, logged = results.read_bytes(), (folder / METRICS_FILE).read_bytes()
    stored = json.loads(before)
    assert stored["result"]["figures"] == first.figures
    assert stored["metadata"]["config"]["task"]["labels"] == ["blue", "green", "red"]
    assert first.baselines["baseline/accuracy"] == max(first.baselines.values())
    assert run(config, start, lines) == first
    assert lines == [f"{config.run_dir}: finished before"] and results.read_bytes() == before
    other = replace(config, optimizer=replace(config.optimizer, learning_rate=1e-3))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: checkpoint has 0.002, config has 0.001"):
        run(other, start)

    # Other evaluation data: the model is evaluated again without training.
    shutil.copy(data / "dev.tsv", data / "test.tsv")
    lines = []
    with alone() as processes:
        again = finetune(config, start, load_content(config, start), processes, lines.append)
        assert processes.progress().units == 4, "all processes begin each batch together"
    assert len(lines) == 1 and lines[0].startswith(f"{config.run_dir}: finished before, with other evaluation data")
    assert (folder / METRICS_FILE).read_bytes() == logged
    assert again.figures == first.figures | {"test/accuracy": first.figures["eval/accuracy"],
                                             "test/macro_f1": first.figures["eval/macro_f1"]}  # fmt: skip
    assert (again.step, again.seconds) == (first.step, first.seconds)
    dev, test = ((folder / name).read_bytes() for name in again.predictions)
    assert again.predictions == ("predictions/dev.tsv", "predictions/test.tsv") and dev == test
    assert run(config, start, lines) == again and lines[1:] == [f"{config.run_dir}: finished before"]
    text = results.read_text()
    results.write_text(text.replace(f'"step": {first.step}', '"step": 2'))
    shutil.copy(data / "train.tsv", data / "test.tsv")
    with pytest.raises(
        ValueError, match=rf"its results belong to step 2, but its weights to step {first.step}; finish"
    ):
        run(config, start)

    # Other training data.
    results.write_text(text)
    write_classes(data, train=80)
    with pytest.raises(ValueError, match="the data changed since this run began"):
        run(config, start)


def test_measured_by_depends_on_data_not_on_path(start: Start, tmp_path: Path) -> None:
    places = [write_questions(tmp_path / name, train=4, dev=4) for name in "abc"]
    (places[2] / "dev-v1.1.json").write_text((places[2] / "dev-v1.1.json").read_text().replace('"dev0"', '"other"'))
    configs = [small_config("squad", start, place, tmp_path / "run") for place in places]
    one, same, other = (load_content(config, start) for config in configs)
    assert one.measured_by == same.measured_by != other.measured_by and one.fingerprint == other.fingerprint
    for setting in ({"null_threshold": 1.0}, {"max_answer": 5}, {"n_best": 3}):
        changed = replace(configs[0], task=replace(configs[0].task, **setting))
        assert load_content(changed, start).measured_by != one.measured_by, setting


@pytest.mark.long  # the suite has the metrics in test_metrics.py
def test_undefined_correlation_is_nan_and_stored_as_null(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, count in (("train", 16), ("dev", 2)):
        rows = [f"{text}\t{number % 3 if name == 'train' else 2.5}" for number, text in enumerate(sentences(count, 0))]
        (tmp_path / "data" / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    config = small_config("regression", start, tmp_path / "data", tmp_path / "run", epochs=1)
    result = run(config, start)
    assert math.isnan(result.figures["eval/spearman"])
    stored = json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
    assert stored["result"]["figures"]["eval/spearman"] is None
    lines: list[str] = []
    again = run(config, start, lines)
    assert lines == [f"{config.run_dir}: finished before"] and math.isnan(again.figures["eval/spearman"])
    patient = replace(config, run_dir=str(tmp_path / "other"), task=replace(config.task, patience=2))
    with pytest.raises(ValueError, match=r"task.patience=2: all 2 numbers of the development set are 2.5"):
        run(patient, start)


@pytest.mark.long  # pretraining has the same test in the suite
def test_run_in_object_storage_equals_a_local_one(start: Start, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", train=48, dev=16)
    remote = RemotePath("memory://finetuned/run")
    for place in (remote, tmp_path / "here"):
        result = run(small_config("classification", start, data, place, epochs=1), start)
        assert result.predictions == ("predictions/dev.tsv",)
    for name in ("predictions/dev.tsv", "vocab.txt"):
        assert (remote / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    again, lines = small_config("classification", start, data, remote, epochs=1), list[str]()
    run(again, start, lines)
    assert lines == [f"{remote}: finished before"]


def test_head_is_random_unless_of_same_task(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run")
    config = resolved(config, load_content(config, start))
    lines: list[str] = []
    drawn = initial_params(config, start, lines.append)
    other = initial_params(replace(config, training=replace(config.training, seed=1)), start, lines.append)
    kernel = lambda params: np.asarray(params["head"]["dense"]["kernel"])  # noqa: E731
    assert not np.array_equal(kernel(drawn), kernel(other))
    for params in (drawn, other):
        jax.tree.map(np.testing.assert_array_equal, params["encoder"], jax.device_get(start.params["encoder"]))
    tuned = Start("tuned", config.model, start.tokenizer, drawn, (), config.task.labels, "sequence")
    second = replace(config, training=replace(config.training, seed=1))
    assert np.array_equal(kernel(initial_params(second, tuned, lines.append)), kernel(drawn)) and not lines
    strange = replace(tuned, labels=("x", "y", "z"))
    assert not np.array_equal(kernel(initial_params(second, strange, lines.append)), kernel(drawn))
    assert lines == ["tuned has a head for other outputs (sequence); a new head starts at random"]


@pytest.mark.long  # the suite has the rule with one kind
def test_head_of_another_kind_or_shape_is_not_reused(start: Start, tmp_path: Path) -> None:
    def config(kind: str, **fields: int) -> FinetuneConfig:
        base = small_config("classification", start, tmp_path, tmp_path / "run")
        training = replace(base.training, objectives=(kind,), seed=fields.pop("seed", 0))
        labels = ("A", "B") if kind == "tokens" else ()
        model = KINDS[kind].headed(replace(base.model, **fields), len(labels))
        return replace(base, model=model, training=training, task=replace(base.task, labels=labels))

    for was, now, carried in (
        (config("regression"), config("relevance", seed=1), False),
        (config("tokens"), config("tokens", seed=1), True),
        (config("tokens"), config("tokens", seed=1, lstm_size=4), False),
    ):
        old, lines = initial_params(was, start, print), list[str]()
        tuned = Start("tuned", was.model, start.tokenizer, old, (), was.task.labels, *was.training.objectives)
        new = initial_params(now, tuned, lines.append)
        assert new["head"].keys() == abstract_network(now.model)[1]["head"].keys()
        same = np.array_equal(new["head"]["dense"]["kernel"], old["head"]["dense"]["kernel"])
        assert (same, len(lines)) == (carried, not carried)
