"""Hooks: their order, what a user's callback may do, and how few frames lie between the shell and the update."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, digests, write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.config import ModelConfig
from bertjax.families.networks import init_params
from bertjax.families.registry import FAMILIES
from bertjax.run import job
from bertjax.run.callbacks import layer_norms
from bertjax.run.checkpoint import saved_steps
from bertjax.run.metrics import LOSS
from bertjax.run.telemetry import curves, read_metrics

pytestmark = pytest.mark.usefixtures("one_device")

PACKAGE = str(Path(bertjax.__file__).parent)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hooks")
    write_corpus(folder / "corpus.txt", 60)
    write_recipe(folder)
    return folder


def pretrain(folder: Path, run: str, *callbacks: bertjax.Callback, **keys: Any) -> bertjax.Callback:
    where = {"data.sources": (f"lines:{folder / 'corpus.txt'}",), "data.root": str(folder / "data")}
    config = bertjax.recipe(folder / "tiny_recipe.py", SIX_STEPS | where | {"run_dir": str(folder / run)} | keys)
    return bertjax.pretrain(replace(config, log=()), callbacks=callbacks)


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
        self.calls.append(f"before save {step}")

    def on_save(self, step: int, directory: str) -> None:
        self.calls.append(f"save {step}")

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
def plain(folder: Path) -> Path:
    pretrain(folder, "plain")
    return folder / "plain"


def test_gradient_metrics_are_logged_and_change_nothing(folder: Path, recorded: Recorder, plain: Path) -> None:
    assert digests(folder / "recorded") == digests(plain)
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
    encoder = jax.device_get(jax.jit(init_params, static_argnums=0)(config, jax.random.key(0)))["encoder"]
    layers = [encoder["first_layer"]] if family == "modernbert" else []
    layers += [jax.tree.map(lambda x, i=i: x[i], encoder["layers"]) for i in range(count - len(layers))]
    expected = [np.sqrt(sum(float(np.sum(np.square(x))) for x in jax.tree.leaves(layer))) for layer in layers]
    norms = layer_norms({"encoder": encoder})
    assert [*norms] == [f"layer_{number}" for number in range(count)]
    assert [*map(float, norms.values())] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == count


def test_stop_ends_training_with_figures_and_a_checkpoint(folder: Path) -> None:
    result = pretrain(folder, "stopped", Stopper())
    assert result.step == 3 and "eval/mlm_loss" in result.figures and result.report.is_file()
    assert saved_steps(folder / "stopped") == [3]
    assert pretrain(folder, "stopped").step == 6, "the same call goes on"
    assert digests(folder / "stopped") == digests(folder / "recorded")


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


def test_run_beyond_its_new_end_is_evaluated(folder: Path, plain: Path) -> None:
    shutil.copytree(plain, folder / "beyond")
    result = pretrain(folder, "beyond", **{"training.steps": 4})
    assert result.step == 6 and result.figures


def test_a_stop_before_a_traced_step_traces_nothing(folder: Path) -> None:
    class EarlyStopper(bertjax.Callback):
        def before_step(self, step: int) -> None:
            if step == 3:
                self.run.stop()

    assert pretrain(folder, "untraced", EarlyStopper(), profile="3:5").step == 3
    assert not list((folder / "untraced").glob("profile/**/steps*"))


def test_main_reaches_the_update_in_eight_frames(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks: list[list[str]] = []

    def noted(update: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            frame, found = sys._getframe(1), []
            while frame is not None:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")
                frame = frame.f_back
            stacks.append(found[::-1])
            return update(*given, **named)

        return call

    make = job.make_optimizer
    monkeypatch.setattr(job, "make_optimizer", lambda config: (o := make(config))._replace(update=noted(o.update)))
    words = [word for key, value in SIX_STEPS.items() for word in (f"--{key}", str(value))]
    words += ["--training.grad-accum-steps", "1"]  # or the first trace is that of the choice of microbatches
    words += ["--data.sources", f"lines:{folder / 'corpus.txt'}", "--data.root", str(folder / "data")]
    assert main(["pretrain", str(folder / "tiny_recipe.py"), *words, "--run-dir", str(folder / "frames")]) == 0
    assert stacks and len(stacks[0]) <= 8, " > ".join(stacks[0])
