"""What a small run calls, logs and leaves: hooks, callbacks, wandb and means of its checkpoints."""

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

KEPT = {"training.checkpoint_every": 2, "training.keep_last": 3, "optimizer.average_decay": 0.25}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_corpus(folder / "corpus.txt", 60)
    write_recipe(folder)
    return folder


def pretrain(
    folder: Path, run: str, *callbacks: bertjax.Callback, log: tuple[str, ...] = (), **keys: Any
) -> PretrainResult:
    config = tiny_config(folder, run, SIX_STEPS | KEPT | keys)
    return bertjax.pretrain(replace(config, log=log), callbacks=callbacks)


class Recorder(bertjax.Callback):
    """Writes down the order of its calls, and measures the gradient."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.bytes_left = 0  # on the devices, once the run has ended

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
            assert json.loads(written[-1])["step"] == 6, "a callback that fails must not lose the line"

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
    """Ends training before the step that follows step 3."""

    def before_step(self, step: int) -> None:
        if step == 3:
            self.run.stop()


class Told(bertjax.Callback):
    """Writes down what it is told."""

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
        assert (Path(directory) / "metadata" / "metadata").is_file(), "it is whole when it is told of"
        self.events.append(("checkpoint", step, directory))

    def on_finish(self, outcome: Any) -> None:
        self.events.append(("end", outcome.step, outcome.evaluation))

    def of(self, kind: str) -> list[tuple]:
        return [event[1:] for event in self.events if event[0] == kind]


def allocated() -> int:
    """Bytes of all arrays of this process."""
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
def stopped(folder: Path) -> tuple[Path, list[Told]]:
    """A run with checks that stopped after step 3, before steps that it was to trace, and went on; what it told."""
    told, log = [Told(), Told()], ("tensorboard", *(("wandb",) if find_spec("wandb") else ()))
    checks = {"training.verify_every": 2, "training.digest_every": 2}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WANDB_MODE", "offline")
        environment.setenv("WANDB_PROJECT", "novels")
        result = pretrain(folder, "stopped", EarlyStopper(), told[0], log=log, profile="3:5", **checks)
        assert result.step == 3 and "eval/mlm_loss" in result.figures and result.report.is_file()
        assert saved_steps(folder / "stopped") == [2, 3]
        assert not list((folder / "stopped").glob("profile/**/steps*")), "a stop before a traced step traces nothing"
        assert pretrain(folder, "stopped", told[1], log=log, **checks).step == 6, "the same call goes on"
    return folder / "stopped", told


def test_gradient_metrics_are_logged_and_change_nothing(folder: Path, recorded: Recorder, stopped: tuple) -> None:
    """Nor do a stop, loggers and checks."""
    assert digests(folder / "recorded") == digests(stopped[0])
    found = curves(read_metrics(folder / "recorded" / "metrics.jsonl"))
    assert found["gradient/whole"] == found["train/grad_norm"]
    assert all(
        0 < layer < whole for layer, whole in zip(found["gradient/layer_1"][1], found["gradient/whole"][1], strict=True)
    )
    assert found["mine/loss"][0] == [6] and found["mine/loss"][1][0] == pytest.approx(found[LOSS][1][-1], abs=0.1)
    assert found["mine/seconds"][0] == [6]


TINY = {"vocab_size": 128, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
TINY |= {"max_position_embeddings": 16, "num_hidden_layers": 3}


@pytest.mark.parametrize(
    ("family", "fields", "count"),
    [
        pytest.param("bert", {}, 3, marks=pytest.mark.long),
        ("modernbert", {}, 3),  # with its first layer apart
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


def test_callbacks_are_called_in_order_with_floats(stopped: tuple[Path, list[Told]]) -> None:
    run, (first, second) = stopped
    assert first.of("start") == [(0, 6, "tiny")] and second.of("start") == [(3, 6, "tiny")]
    assert [step for (step,) in first.of("step") + second.of("step")] == list(range(1, 7))
    for told in (first, second):
        assert told.events[0][0] == "start" and told.events[-1][0] == "end"
        (end,) = told.of("end")
        ((step, evaluated),) = told.of("evaluation")
        assert end[0] == step and end[1].items() <= evaluated.items() and end[1]
        assert (step, str(run / "checkpoints" / str(step))) == told.of("checkpoint")[-1]
    figures = {
        (step, name): value
        for told in (first, second)
        for step, found in told.of("log") + told.of("evaluation")
        for name, value in found.items()
    }
    assert {type(value) for value in figures.values()} == {float}
    for (step, name), value in figures.items():
        assert value == pytest.approx(logged_steps(run, name)[step], rel=1e-8, nan_ok=True)


def logged_steps(run: Path, metric: str) -> dict[int, float]:
    steps, values = curves(read_metrics(run / "metrics.jsonl"))[metric]
    return dict(zip(steps, values, strict=True))


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run: wandb's own messages, in LevelDB's framing behind seven bytes of its own."""
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
        if part in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_wandb_gets_name_config_and_every_figure(stopped: tuple[Path, list[Told]]) -> None:
    """From both processes of a run, as one run."""
    pytest.importorskip("wandb", reason="needs wandb: pip install 'bertjax[wandb]'")
    run, _ = stopped
    identity = logged_id(run, "wandb")
    files = sorted((run / "wandb").glob(f"offline-run-*/run-{identity}.wandb"))
    assert len(files) == len(list((run / "wandb").glob("offline-run-*"))) == 2
    history: dict[str, dict[int, float]] = {}
    for path in files:
        records = list(wandb_records(path))
        (about,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
        config = {item.key: json.loads(item.value_json) for item in about.config.update}
        assert (about.run_id, about.display_name, about.project) == (identity, "tiny", "novels")
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
    """The last stage has another objective, whose figures the run does not have."""
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


# Means of its checkpoints


@pytest.fixture
def kept_run(folder: Path, recorded: Recorder) -> Path:
    """The directory of the run, with checkpoints of steps 2, 4 and 6."""
    return folder / "recorded"


@pytest.mark.parametrize("last", [2, 3])  # a half is exact, a third is not
def test_the_mean_is_that_of_the_arrays_in_float64(kept_run: Path, tmp_path: Path, last: int) -> None:
    made = average(kept_run, last, tmp_path / "mean")
    assert made.steps == (2, 4, 6)[-last:]
    found = load_run(made.directory)
    sources = [load_run(kept_run / "checkpoints" / str(step)).params for step in made.steps]
    whole = [jax.tree.map(lambda x: np.asarray(x, np.float64), params) for params in sources]
    wanted = jax.tree.map(lambda *each: (sum(each) / last).astype(np.float32), *whole)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.params), wanted)
    assert found.step == 6 and found.config.model == load_run(kept_run).config.model
    told = read_metadata(made.directory)["averaged"]
    assert [of["step"] for of in told] == [*made.steps] and len({of["digest"] for of in told}) == last


def test_other_verbs_read_it(kept_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = tmp_path / "mean"
    assert main(["run", "average", str(kept_run), "--last", "3", "--output", str(mean)]) == 0
    assert "the mean of 3 checkpoints, 2, 4, 6" in capsys.readouterr().out
    assert main(["evaluate", str(mean)]) == 0
    assert "step 6 of" in capsys.readouterr().out


def test_the_moving_average_is_that_of_the_updates(kept_run: Path, tmp_path: Path) -> None:
    """Of checkpoints two updates apart, with a decay of a quarter: nearer to the newest than to the ones before."""
    made = write_moving_average(kept_run, tmp_path / "moving")
    found, *sources = (
        load_run(path).params for path in (made.directory, *sorted((kept_run / "checkpoints").iterdir()))
    )
    found, *sources = (np.concatenate([x.ravel() for x in jax.tree.leaves(p)]) for p in (found, *sources))
    off = [float(np.linalg.norm(found - source)) for source in sources]
    assert len(off) == 3 and 0 < off[2] < 0.5 * off[1] < off[0]
    told = read_metadata(made.directory)["averaged"]
    assert [(of["step"], of["decay"], of["updates"]) for of in told] == [(6, 0.25, 6)]


def test_moving_average_is_of_the_newest_checkpoint(kept_run: Path, tmp_path: Path) -> None:
    """Also where training stopped early, and other verbs read the best one."""
    shutil.copytree(kept_run, tmp_path / "run")
    shutil.move(tmp_path / "run" / "checkpoints" / "2", tmp_path / "run" / "best" / "2")
    assert load_run(tmp_path / "run").step == 2
    assert write_moving_average(tmp_path / "run").steps == (6,)


def test_what_cannot_be_averaged_is_refused(kept_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (
            ["--last", "5"],
            "keeps 3 checkpoint(s) (2, 4, 6); give a smaller --last, or train with --training.keep-last 5",
        ),
        (["--last", "1"], "--last 1: an average needs 2 or more checkpoints"),
        (["--last", "2", "--output", str(kept_run)], "is not empty; choose another (--output), or move it away"),
    ):
        assert main(["run", "average", str(kept_run), *words]) == 1
        assert said in capsys.readouterr().err
