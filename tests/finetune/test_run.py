"""Fine-tuning runs through the trainer that pretrains: they learn, stop early, are resumed and evaluated again."""

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
from small_tasks import content_of, sentences, small_config, small_start, write_classes, write_questions, write_tags

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


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return small_start(tmp_path_factory.mktemp("start"))


def run(config: FinetuneConfig, start: Start, said: list[str] | None = None) -> Result:
    with alone() as processes:
        return finetune(config, start, content_of(config, start), processes, (said if said is not None else []).append)


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
def test_a_task_is_learned_and_predicted(
    start: Start, tmp_path: Path, task: str, write: Callable[[Path], Path], figure: str, least: float
) -> None:
    config = small_config(task, start, write(tmp_path / "data"), tmp_path / "run", epochs=12)
    config = replace(config, training=replace(config.training, eval_every=1000))
    require_learned(config, run(config, start), figure, least)


def require_learned(config: FinetuneConfig, result: Result, figure: str, least: float) -> None:
    """A figure, predictions, a model that can be loaded, and a report with all of them."""
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
    """A run that ended by patience, with its data beside it."""
    folder = tmp_path_factory.mktemp("patient")
    config = small_config("classification", start, write_classes(folder / "data"), folder / "run", epochs=40)
    config = replace(config, task=replace(config.task, patience=3))
    return config, run(config, start)


def test_patience_stops_and_keeps_the_best(start: Start, patient: tuple[FinetuneConfig, Result]) -> None:
    (config, result), folder = patient, Path(patient[0].run_dir)
    seen = evaluations(result.directory, "eval/accuracy")
    best = next(step for step, value in seen.items() if value == max(seen.values()))
    assert max(seen) < resolved(config, content_of(config, start)).training.steps
    assert list(seen).index(max(seen)) - list(seen).index(best) == 3
    assert result.step == best and result.figures["eval/accuracy"] == max(seen.values())
    assert [path.name for path in (folder / BEST).iterdir() if path.name.isdecimal()] == [str(best)]
    assert read_metadata(folder / DIRECTORY)["step"] == max(seen)
    require_learned(config, result, "eval/accuracy", 0.9)


def test_finished_run_is_not_repeated_but_evaluated(start: Start, patient: tuple[FinetuneConfig, Result]) -> None:
    """Changes the data of the run, so it comes last of its tests."""
    (config, first), said = patient, list[str]()
    data, folder = Path(config.task.data), Path(config.run_dir)
    results = folder / "results.json"
    before, logged = results.read_bytes(), (folder / METRICS_FILE).read_bytes()
    told = json.loads(before)
    assert told["result"]["figures"] == first.figures
    assert told["metadata"]["config"]["task"]["labels"] == ["blue", "green", "red"]
    assert first.baselines["baseline/accuracy"] == max(first.baselines.values())
    assert run(config, start, said) == first
    assert said == [f"{config.run_dir}: finished before"] and results.read_bytes() == before
    other = replace(config, optimizer=replace(config.optimizer, learning_rate=1e-3))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: checkpoint has 0.002, config has 0.001"):
        run(other, start)

    # Other evaluation data: the model is evaluated again, and not trained.
    shutil.copy(data / "dev.tsv", data / "test.tsv")
    said = []
    with alone() as processes:
        again = finetune(config, start, content_of(config, start), processes, said.append)
        assert processes.progress().units == 4, "each batch is one that all begin together, or none"
    assert len(said) == 1 and said[0].startswith(f"{config.run_dir}: finished before, with other evaluation data")
    assert (folder / METRICS_FILE).read_bytes() == logged
    assert again.figures == first.figures | {"test/accuracy": first.figures["eval/accuracy"],
                                             "test/macro_f1": first.figures["eval/macro_f1"]}  # fmt: skip
    assert (again.step, again.seconds) == (first.step, first.seconds)
    dev, test = ((folder / name).read_bytes() for name in again.predictions)
    assert again.predictions == ("predictions/dev.tsv", "predictions/test.tsv") and dev == test
    assert run(config, start, said) == again and said[1:] == [f"{config.run_dir}: finished before"]
    written = results.read_text()
    results.write_text(written.replace(f'"step": {first.step}', '"step": 2'))
    shutil.copy(data / "train.tsv", data / "test.tsv")
    with pytest.raises(
        ValueError, match=rf"its results belong to step 2, but its weights to step {first.step}; finish"
    ):
        run(config, start)

    # Other training data.
    results.write_text(written)
    write_classes(data, train=80)
    with pytest.raises(ValueError, match="the data changed since this run began"):
        run(config, start)


def test_what_measures_is_known_wherever_it_lies(start: Start, tmp_path: Path) -> None:
    places = [write_questions(tmp_path / name, train=4, dev=4) for name in "abc"]
    (places[2] / "dev-v1.1.json").write_text((places[2] / "dev-v1.1.json").read_text().replace('"dev0"', '"other"'))
    configs = [small_config("squad", start, place, tmp_path / "run") for place in places]
    one, same, other = (content_of(config, start) for config in configs)
    assert one.measured_by == same.measured_by != other.measured_by and one.fingerprint == other.fingerprint
    for setting in ({"null_threshold": 1.0}, {"max_answer": 5}, {"n_best": 3}):
        changed = replace(configs[0], task=replace(configs[0].task, **setting))
        assert content_of(changed, start).measured_by != one.measured_by, setting


@pytest.mark.long  # the suite has the metrics in test_metrics.py
def test_a_figure_that_is_not_defined(start: Start, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, count in (("train", 16), ("dev", 2)):
        rows = [f"{text}\t{number % 3 if name == 'train' else 2.5}" for number, text in enumerate(sentences(count, 0))]
        (tmp_path / "data" / f"{name}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    config = small_config("regression", start, tmp_path / "data", tmp_path / "run", epochs=1)
    result = run(config, start)
    assert math.isnan(result.figures["eval/spearman"])
    told = json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)
    assert told["result"]["figures"]["eval/spearman"] is None
    said: list[str] = []
    again = run(config, start, said)
    assert said == [f"{config.run_dir}: finished before"] and math.isnan(again.figures["eval/spearman"])
    patient = replace(config, run_dir=str(tmp_path / "other"), task=replace(config.task, patience=2))
    with pytest.raises(ValueError, match=r"task.patience=2: all 2 numbers of the development set are 2.5"):
        run(patient, start)


@pytest.mark.long  # pretraining has the same test in the suite
def test_run_in_object_storage_equals_a_local_one(start: Start, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", train=48, dev=16)
    there = RemotePath("memory://finetuned/run")
    for place in (there, tmp_path / "here"):
        result = run(small_config("classification", start, data, place, epochs=1), start)
        assert result.predictions == ("predictions/dev.tsv",)
    for name in ("predictions/dev.tsv", "vocab.txt"):
        assert (there / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    again, said = small_config("classification", start, data, there, epochs=1), list[str]()
    run(again, start, said)
    assert said == [f"{there}: finished before"]


def test_head_is_drawn_unless_of_the_same_task(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run")
    config = resolved(config, content_of(config, start))
    said: list[str] = []
    drawn = initial_params(config, start, said.append)
    other = initial_params(replace(config, training=replace(config.training, seed=1)), start, said.append)
    kernel = lambda params: np.asarray(params["head"]["dense"]["kernel"])  # noqa: E731
    assert not np.array_equal(kernel(drawn), kernel(other))
    for params in (drawn, other):
        jax.tree.map(np.testing.assert_array_equal, params["encoder"], jax.device_get(start.params["encoder"]))
    tuned = Start("tuned", config.model, start.tokenizer, drawn, (), config.task.labels, "sequence")
    second = replace(config, training=replace(config.training, seed=1))
    assert np.array_equal(kernel(initial_params(second, tuned, said.append)), kernel(drawn)) and not said
    strange = replace(tuned, labels=("x", "y", "z"))
    assert not np.array_equal(kernel(initial_params(second, strange, said.append)), kernel(drawn))
    assert said == ["tuned has a head for other outputs (sequence); a new head starts at random"]


@pytest.mark.long  # the suite has the rule with one kind
def test_head_of_another_kind_or_shape_is_not_reused(start: Start, tmp_path: Path) -> None:
    def config(kind: str, **fields: int) -> FinetuneConfig:
        found = small_config("classification", start, tmp_path, tmp_path / "run")
        training = replace(found.training, objectives=(kind,), seed=fields.pop("seed", 0))
        labels = ("A", "B") if kind == "tokens" else ()
        model = KINDS[kind].headed(replace(found.model, **fields), len(labels))
        return replace(found, model=model, training=training, task=replace(found.task, labels=labels))

    for was, now, carried in (
        (config("regression"), config("relevance", seed=1), False),
        (config("tokens"), config("tokens", seed=1), True),
        (config("tokens"), config("tokens", seed=1, lstm_size=4), False),
    ):
        old, said = initial_params(was, start, print), list[str]()
        tuned = Start("tuned", was.model, start.tokenizer, old, (), was.task.labels, *was.training.objectives)
        new = initial_params(now, tuned, said.append)
        assert new["head"].keys() == abstract_network(now.model)[1]["head"].keys()
        same = np.array_equal(new["head"]["dense"]["kernel"], old["head"]["dense"]["kernel"])
        assert (same, len(said)) == (carried, not carried)
