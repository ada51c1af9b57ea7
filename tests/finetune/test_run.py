"""Fine-tuning runs through the trainer that pretrains: they learn, stop early, end the same on every mesh."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from small_tasks import content_of, small_config, small_start, write_classes, write_questions, write_tags

from bertjax.config import FinetuneConfig, MeshConfig
from bertjax.finetune.job import resolved
from bertjax.finetune.run import Result, Start, finetune, initial_params
from bertjax.parallel.processes import alone
from bertjax.text.remote import RemotePath
from bertjax.training.checkpoint import BEST, DIRECTORY, read_metadata
from bertjax.training.run_directory import load_run
from bertjax.training.telemetry import METRICS_FILE, read_metrics


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
        ("classification", write_classes, "eval/accuracy", 0.9),
        ("pos", write_tags, "eval/accuracy", 0.95),
        ("squad", write_questions, "eval/exact_match", 0.9),
    ],
)
def test_a_task_is_learned_and_predicted(
    start: Start, tmp_path: Path, task: str, write: Callable[[Path], Path], figure: str, least: float
) -> None:
    config = small_config(task, start, write(tmp_path / "data"), tmp_path / "run", epochs=12)
    config = replace(config, training=replace(config.training, eval_every=1000))
    result = run(config, start)
    assert result.figures[figure] >= least, result
    assert evaluations(result.directory, figure)[result.step] == pytest.approx(result.figures[figure])
    assert result.predictions and all((tmp_path / "run" / name).stat().st_size for name in result.predictions)
    model = load_run(result.directory)
    assert isinstance(model.config, FinetuneConfig) and model.step == result.step


def test_every_mesh_and_microbatch_takes_the_same_steps(start: Start, tmp_path: Path) -> None:
    data = write_classes(tmp_path / "data", train=48, dev=16)
    losses = {}
    for name, mesh, parts in (
        ("data8", MeshConfig(), 1),
        ("data2-fsdp2-tensor2", MeshConfig(data=2, fsdp=2, tensor=2), 2),
    ):
        config = small_config("classification", start, data, tmp_path / name, epochs=2)
        config = replace(config, mesh=mesh, training=replace(config.training, grad_accum_steps=parts, log_every=1))
        result = run(config, start)
        losses[name] = [*evaluations(result.directory, "train/sequence_loss").values(), *result.figures.values()]
    one, other = losses.values()
    assert len(one) > 6
    np.testing.assert_allclose(other, one, rtol=2e-5)


def test_patience_ends_a_run_and_keeps_the_best_weights(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run", epochs=40)
    config = replace(config, task=replace(config.task, patience=3))
    result = run(config, start)
    seen = evaluations(result.directory, "eval/accuracy")
    best = next(step for step, value in seen.items() if value == max(seen.values()))
    assert max(seen) < resolved(config, content_of(config, start)).training.steps
    assert list(seen).index(max(seen)) - list(seen).index(best) == 3
    assert result.step == best and result.figures["eval/accuracy"] == max(seen.values())
    assert [path.name for path in (tmp_path / "run" / BEST).iterdir() if path.name.isdecimal()] == [str(best)]
    assert read_metadata(tmp_path / "run" / DIRECTORY)["step"] == max(seen)
    assert load_run(result.directory).step == best


def test_a_finished_run_is_not_run_again_and_another_is_refused(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run", epochs=1)
    first, said = run(config, start), list[str]()
    before = (tmp_path / "run" / "results.json").read_bytes()
    assert run(config, start, said) == first
    assert said == [f"{config.run_dir}: finished before"] and (tmp_path / "run" / "results.json").read_bytes() == before
    other = replace(config, optimizer=replace(config.optimizer, learning_rate=1e-3))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate: checkpoint has 0.002, config has 0.001"):
        run(other, start)
    write_classes(tmp_path / "data", train=80)
    with pytest.raises(ValueError, match="data_fingerprint"):
        run(config, start)


def test_a_run_in_object_storage_leaves_what_one_on_the_disk_does(start: Start, tmp_path: Path) -> None:
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


def test_a_head_is_drawn_by_the_seed_unless_it_is_of_the_same_task(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run")
    config = resolved(config, content_of(config, start))
    drawn = initial_params(config, start)
    other = initial_params(replace(config, training=replace(config.training, seed=1)), start)
    kernel = lambda params: np.asarray(params["head"]["dense"]["kernel"])  # noqa: E731
    assert not np.array_equal(kernel(drawn), kernel(other))
    for params in (drawn, other):
        jax.tree.map(np.testing.assert_array_equal, params["encoder"], jax.device_get(start.params["encoder"]))
    tuned = Start("tuned", config.model, start.tokenizer, drawn, (), config.task.labels)
    assert np.array_equal(kernel(initial_params(config, tuned)), kernel(drawn))
    strange = replace(tuned, labels=("x", "y", "z"))
    second = replace(config, training=replace(config.training, seed=1))
    assert not np.array_equal(kernel(initial_params(second, strange)), kernel(drawn))


def test_results_say_what_they_are_of(start: Start, tmp_path: Path) -> None:
    config = small_config("classification", start, write_classes(tmp_path / "data"), tmp_path / "run", epochs=1)
    result = run(config, start)
    told = json.loads((tmp_path / "run" / "results.json").read_text())
    assert told["result"]["figures"] == result.figures
    assert told["metadata"]["config"]["task"]["labels"] == ["blue", "green", "red"]
    assert result.baselines["baseline/majority_accuracy"] == pytest.approx(max(result.baselines.values()))
