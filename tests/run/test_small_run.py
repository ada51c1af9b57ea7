"""A small run: the order of hooks, callbacks, wandb, and averages of its checkpoints."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, digests, tiny_config, write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.config import ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES
from bertjax.run.averaging import average, write_moving_average
from bertjax.run.callbacks import layer_norms
from bertjax.run.checkpoint import read_metadata, saved_steps
from bertjax.run.loggers.logger import logged_id
from bertjax.run.metrics import LOSS
from bertjax.run.pretrain import PretrainResult
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import curves, read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

CHECKPOINT_KEYS = {"training.checkpoint_every": 2, "training.keep_last": 3, "optimizer.average_decay": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_corpus(folder / "corpus.txt", 60)
    write_recipe(folder)
    return folder


def pretrain(
    folder: Path, run: str, *callbacks: bertjax.Callback, log: tuple[str, ...] = (), **keys: Any
) -> PretrainResult:
    config = tiny_config(folder, run, SIX_STEPS | CHECKPOINT_KEYS | keys)
    return bertjax.pretrain(replace(config, log=log), callbacks=callbacks)


class Recorder(bertjax.Callback):
    """Records the order of its calls, and measures the gradient."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bytes_left = 0  # on the devices after the run

    def before_step(self, step: int) -> None:
        if step == 5:
            self.calls.append("before step 6")

    def after_step(self, step: int) -> None:
        if step == 6:
            self.calls.append("after step 6")
            assert int(self.run.state.step) == self.run.step == 6
            self.run.add_figures({"mine/loss": self.run.metrics["loss"]})

    def on_log(self, step: int, figures: Any) -> None:
        if step == 6:
            self.calls.append("log 6")
            written = Path(self.run.config.directory, "metrics.jsonl").read_text().splitlines()
            assert json.loads(written[-1])["step"] == 6, "a failing callback must not lose the line"

    def evaluation_figures(self, seconds: float) -> dict[str, float]:
        return {"mine/seconds": seconds}

    def on_evaluation(self, step: int, figures: Any) -> None:
        assert figures["mine/seconds"] > 0
        self.calls.append(f"evaluation {step}")

    def before_save(self, step: int) -> None:
        if step == 6:
            self.calls.append("before save 6")

    def on_save(self, step: int, directory: str) -> None:
        if step == 6:
            self.calls.append("save 6")

    def after_training(self) -> None:
        self.calls.append("after training")

    def on_finish(self, outcome: Any) -> None:
        self.calls.append(f"finish {outcome.step}")

    def gradient_metrics(self, gradient: Any) -> dict[str, jax.Array]:
        return layer_norms(gradient) | {"whole": optax.tree.norm(gradient)}


class Stopper(bertjax.Callback):
    """Ends training after step 3."""

    def after_step(self, step: int) -> None:
        if step == 3:
            self.run.stop()


class EarlyStopper(bertjax.Callback):
    """Ends training after step 3, before the next step begins."""

    def before_step(self, step: int) -> None:
        if step == 3:
            self.run.stop()


class EventLog(bertjax.Callback):
    """Records all events with their arguments."""

    def __init__(self) -> None:
        self.events: list[tuple] = []

    def on_start(self) -> None:
        self.events.append(("start", self.run.step, self.run.last_step, self.run.config.name))

    def after_step(self, step: int) -> None:
        self.events.append(("step", step))

    def on_log(self, step: int, figures: Any) -> None:
        self.events.append(("log", step, dict(figures)))

    def on_evaluation(self, step: int, figures: Any) -> None:
        self.events.append(("evaluation", step, dict(figures)))

    def on_save(self, step: int, directory: str) -> None:
        assert (Path(directory) / "metadata" / "metadata").is_file(), "on_save comes after the checkpoint is complete"
        self.events.append(("checkpoint", step, directory))

    def on_finish(self, outcome: Any) -> None:
        self.events.append(("end", outcome.step, outcome.evaluation))

    def of(self, kind: str) -> list[tuple]:
        return [event[1:] for event in self.events if event[0] == kind]


def allocated() -> int:
    """Bytes of all arrays in this process."""
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Recorder:
    before = allocated()
    pretrain(folder, "recorded", recorder := Recorder())
    recorder.bytes_left = allocated() - before
    return recorder


def test_log_comes_before_evaluation_before_save(recorded: Recorder) -> None:
    assert recorded.calls == [
        *("before step 6", "after step 6", "log 6", "evaluation 6", "before save 6"),
        *("after training", "save 6", "finish 6"),
    ]


@pytest.fixture(scope="module")
def stopped(folder: Path) -> tuple[Path, list[EventLog]]:
    """A run with checks that stopped after step 3, before the steps to trace, and was resumed; with its events."""
    events, log = [EventLog(), EventLog()], ("tensorboard", *(("wandb",) if find_spec("wandb") else ()))
    checks = {"training.verify_every": 2, "training.digest_every": 2}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        environment.setenv("WANDB_PROJECT", "novels")
        result = pretrain(folder, "stopped", EarlyStopper(), events[0], log=log, profile="3:5", **checks)
        assert result.step == 3 and "eval/mlm_loss" in result.figures and result.report.is_file()
        assert saved_steps(folder / "stopped") == [2, 3]
        assert not list((folder / "stopped").glob("profile/**/steps*")), "nothing is traced before the stop"
        assert pretrain(folder, "stopped", events[1], log=log, **checks).step == 6, "the same call resumes"
    return folder / "stopped", events


def test_gradient_metrics_are_logged_and_change_nothing(folder: Path, recorded: Recorder, stopped: tuple) -> None:
    """A stop, loggers and checks do not change the bits either."""
    assert digests(folder / "recorded") == digests(stopped[0])
    figures = curves(read_metrics(folder / "recorded" / "metrics.jsonl"))
    assert figures["gradient/whole"] == figures["train/grad_norm"]
    norms = zip(figures["gradient/layer_1"][1], figures["gradient/whole"][1], strict=True)
    assert all(0 < layer < whole for layer, whole in norms)
    assert figures["mine/loss"][0] == [6]
    assert figures["mine/loss"][1][0] == pytest.approx(figures[LOSS][1][-1], abs=0.1)
    assert figures["mine/seconds"][0] == [6]


TINY = {"vocab_size": 128, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
TINY |= {"max_position_embeddings": 16, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("family", "fields", "count"),
    [
        pytest.param("bert", {}, 3, marks=pytest.mark.long),
        ("modernbert", {}, 3),  # has a separate first layer
        ("albert", {"embedding_size": 4, "layer_groups": 2}, 2),  # a norm per group
    ],
)
def test_layer_norms_follow_the_order_of_layers(family: str, fields: dict[str, int], count: int) -> None:
    config: ModelConfig = replace(FAMILIES[family].presets["base"], **TINY, **fields)
    draw = np.random.default_rng(0)
    shapes = abstract_network(config)[1]["encoder"]
    encoder = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape).astype(np.float32), shapes)
    layers = [encoder["first_layer"]] if family == "modernbert" else []
    layers += [jax.tree.map(lambda x, i=i: x[i], encoder["layers"]) for i in range(count - len(layers))]
    expected = [np.sqrt(sum(float(np.sum(np.square(x))) for x in jax.tree.leaves(layer))) for layer in layers]
    norms = jax.jit(layer_norms)({"encoder": encoder})
    assert [*norms] == [f"layer_{number}" for number in range(count)]
    assert [*map(float, norms.values())] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == count


def test_callbacks_are_called_in_order_with_floats(stopped: tuple[Path, list[EventLog]]) -> None:
    run, (first, second) = stopped
    assert first.of("start") == [(0, 6, "tiny")] and second.of("start") == [(3, 6, "tiny")]
    assert [step for (step,) in first.of("step") + second.of("step")] == list(range(1, 7))
    for log in (first, second):
        assert log.events[0][0] == "start" and log.events[-1][0] == "end"
        (end,) = log.of("end")
        ((step, evaluated),) = log.of("evaluation")
        assert end[0] == step and end[1].items() <= evaluated.items() and end[1]
        assert (step, str(run / "checkpoints" / str(step))) == log.of("checkpoint")[-1]
    figures = {
        (step, name): value
        for log in (first, second)
        for step, logged in log.of("log") + log.of("evaluation")
        for name, value in logged.items()
    }
    assert {type(value) for value in figures.values()} == {float}
    for (step, name), value in figures.items():
        assert value == pytest.approx(logged_steps(run, name)[step], rel=1e-8, nan_ok=True)


def logged_steps(run: Path, metric: str) -> dict[int, float]:
    steps, values = curves(read_metrics(run / "metrics.jsonl"))[metric]
    return dict(zip(steps, values, strict=True))


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run: wandb messages in LevelDB framing after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, block = path.read_bytes(), 7, b"", 32_768
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = block - at % block
        if left < 7:
            at += left
            continue
        _, length, part = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # a complete record, or its last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb_gets_name_config_and_every_figure(stopped: tuple[Path, list[EventLog]]) -> None:
    """Both processes of the run log to one wandb run."""
    pytest.importorskip("wandb", reason="needs wandb: pip install 'bertjax[wandb]'")
    run, _ = stopped
    identity = logged_id(run, "wandb")
    files = sorted((run / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(files) == len(list((run / "wandb").glob("offline-run-*"))) == 2
    history: dict[str, dict[int, float]] = {}
    for path in files:
        records = list(wandb_records(path))
        (header,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        config = {item.key: json.loads(item.value_json) for item in header.config.update}
        assert (header.run_id, header.display_name, header.project) == (identity, "tiny", "novels")
        assert config["model.hidden_size"] == 32 and config["data.masking"] == "tokens"
        for record in records:
            if record.WhichOneof("record_type") == "history":
                line = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in record.history.item}
                for name, value in line.items():
                    history.setdefault(name, {})[line["step"]] = value
    for name in ("train/mlm_loss", "train/nsp_loss", "eval/mlm_loss", "train/learning_rate"):
        assert history[name] == pytest.approx(logged_steps(run, name), rel=1e-8), name


@pytest.mark.long
def test_stop_in_an_earlier_stage_reports_its_figures(folder: Path) -> None:
    """The run has no figures of the last stage, which has another objective."""
    stages = {"training.objectives": ["clm"], "stages": [{"start": 5, "objectives": ["mlm"]}]}
    result = pretrain(folder, "first_stage", Stopper(), **stages, **{"data.rows": "full_sentences"})
    assert result.step == 3 and "baseline/next_unigram_loss" in result.baselines
    assert result.summary is not None
    assert {f"eval/{one.figure}" for one in result.summary.held_out} == result.figures.keys() - {"eval/loss"}


def test_finished_run_frees_its_arrays(recorded: Recorder) -> None:
    assert recorded.run.step == 6
    assert recorded.bytes_left < 100_000, "parameters and moments take 400 kB"


def test_run_beyond_its_new_end_is_evaluated(folder: Path, recorded: Recorder) -> None:
    shutil.copytree(folder / "recorded", folder / "beyond")
    result = pretrain(folder, "beyond", **{"training.steps": 4})
    assert result.step == 6 and result.figures


# Averages of checkpoints


@pytest.fixture
def kept_run(folder: Path, recorded: Recorder) -> Path:
    """The directory of the run, with checkpoints of steps 2, 4 and 6."""
    return folder / "recorded"


@pytest.mark.parametrize("last", [2, 3])  # a half is exact, a third is not
def test_average_is_the_float64_mean_of_the_arrays(kept_run: Path, tmp_path: Path, last: int) -> None:
    result = average(kept_run, last, tmp_path / "mean")
    assert result.steps == (2, 4, 6)[-last:]
    model = load_run(result.directory)
    params = [load_run(kept_run / "checkpoints" / str(step)).params for step in result.steps]
    in_float64 = [jax.tree.map(lambda x: np.asarray(x, np.float64), one) for one in params]
    expected = jax.tree.map(lambda *each: (sum(each) / last).astype(np.float32), *in_float64)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(model.params), expected)
    assert model.step == 6 and model.config.model == load_run(kept_run).config.model
    sources = read_metadata(result.directory)["averaged"]
    assert [one["step"] for one in sources] == [*result.steps] and len({one["digest"] for one in sources}) == last


def test_other_verbs_read_an_averaged_run(kept_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = tmp_path / "mean"
    assert main(["run", "average", str(kept_run), "--last", "3", "--output", str(mean)]) == 0
    assert "the mean of 3 checkpoints, 2, 4, 6" in capsys.readouterr().out
    assert main(["evaluate", str(mean)]) == 0
    assert ", after 6 steps (" in capsys.readouterr().out


def test_moving_average_is_closest_to_the_newest_checkpoint(kept_run: Path, tmp_path: Path) -> None:
    """The checkpoints are two updates apart and the decay is a quarter."""
    result = write_moving_average(kept_run, tmp_path / "moving")
    paths = [result.directory, *sorted((kept_run / "checkpoints").iterdir())]
    params = [load_run(path).params for path in paths]
    mean, *checkpoints = (np.concatenate([x.ravel() for x in jax.tree.leaves(one)]) for one in params)
    distances = [float(np.linalg.norm(mean - checkpoint)) for checkpoint in checkpoints]
    assert len(distances) == 3 and 0 < distances[2] < 0.5 * distances[1] < distances[0]
    sources = read_metadata(result.directory)["averaged"]
    assert [(one["step"], one["decay"], one["updates"]) for one in sources] == [(6, 0.25, 6)]


def test_moving_average_uses_the_newest_not_the_best(kept_run: Path, tmp_path: Path) -> None:
    """Even if training stopped early, and other verbs read the best checkpoint."""
    shutil.copytree(kept_run, tmp_path / "run")
    shutil.move(tmp_path / "run" / "checkpoints" / "2", tmp_path / "run" / "best" / "2")
    assert load_run(tmp_path / "run").step == 2
    assert write_moving_average(tmp_path / "run").steps == (6,)


def test_average_refuses_unusable_arguments(kept_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (
            ["--last", "5"],
            "keeps 3 checkpoint(s) (2, 4, 6); give a smaller --last, or train with --training.keep-last 5",
        ),
        (["--last", "1"], "--last 1: an average needs 2 or more checkpoints"),
        (["--last", "2", "--output", str(kept_run)], "is not empty; choose another (--output), or move it away"),
    ):
        assert main(["run", "average", str(kept_run), *words]) == 1
        assert message in capsys.readouterr().err
