"""A run that is killed and restarted ends with the bits of an uninterrupted run."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from compiled_late import LATE
from generated_corpus import write_corpus
from tiny_runs import checkpoints, command, digests, finish, start, stop_after, write_recipe

from bertjax.__main__ import main
from bertjax.convert.sources import open_source
from bertjax.run.run_directory import own_directory
from bertjax.run.telemetry import read_metrics


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Recipe, source, and the directory of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("resume")
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 300)
    finish(command(recipe, source, folder / "whole"), folder / "whole.log")
    return recipe, source, folder / "whole"


def kill_until_done(arguments: list[str], log: Path, moments: list[tuple[str, float]]) -> int:
    """Kill a run some seconds after it prints a text, for each moment, then finish it; returns the number of kills."""
    kills = 0
    for text, seconds in moments:
        kills += stop_after(arguments, log, seconds, signal.SIGKILL, text) is not None
    finish(arguments, log)
    return kills


def logged(run_dir: Path) -> list[tuple[int, float]]:
    """(step, tokens seen) of every logged window."""
    records = read_metrics(run_dir / "metrics.jsonl")
    return [(record["step"], record["train/tokens_seen"]) for record in records if "train/tokens_seen" in record]


# Options of runs with one or two networks; {run} is the directory of a finished run.
NETWORK_OPTIONS = {
    "one": "",
    "generator": "--model.family electra --model.pooler gelu --model.generator-width 0.5 --training.objectives mlm rtd "
    "--data.packing pairs --data.keep-share 0.15 --data.random-share 0",
    "teacher": "--model.num-hidden-layers 1 --distillation.teacher {run} "
    "--training.objectives distil_mlm mlm distil_cosine",
}


@pytest.mark.long  # the suite kills runs in tests/chaos and test_family_training.py
@pytest.mark.parametrize("networks", NETWORK_OPTIONS)
def test_run_killed_at_random_moments_ends_the_same(
    networks: str, whole: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    recipe, source, reference = whole
    run_dir, log = tmp_path / "killed", tmp_path / "killed.log"
    options = NETWORK_OPTIONS[networks].format(run=reference).split()
    if options:
        reference = tmp_path / "whole"
        finish(command(recipe, source, reference, *options), tmp_path / "whole.log")
    rng = random.Random(0)
    # After step 40, when there is a checkpoint, and after the next progress line.
    moments = [(text, rng.uniform(0.0, 0.2)) for text in ("pretraining  40 /", "pretraining  ")]
    kills = kill_until_done(command(recipe, source, run_dir, *options), log, moments)
    assert kills == 2, "the run ended before it could be killed; let it train longer"
    resumed = [int(step) for step in re.findall(r"^resuming .* at step (\d+)", log.read_text(), re.M)]
    assert len(resumed) == 2 and 0 < resumed[0] <= resumed[1] < 120, resumed
    assert digests(run_dir) == digests(reference)
    assert figures(run_dir) == figures(reference)
    curve = logged(run_dir)
    assert [step for step, _ in curve] == sorted({step for step, _ in curve}), "lines of a killed process remain"
    assert curve[-1] == logged(reference)[-1], "tokens were lost or counted twice"


# Where to kill the run: at the first call of a hook method at this step or later.
MOMENTS = {
    "after a checkpoint, within a window of the log": ("after_step", 75),
    "after the last checkpoint, before the report": ("on_finish", 120),
}


@pytest.mark.parametrize(
    "moments", [[*MOMENTS][:1], pytest.param([*MOMENTS], marks=pytest.mark.long)], ids=["one", "all"]
)
def test_log_of_a_killed_run_equals_an_undisturbed_one(
    moments: list[str], whole: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    recipe, source, reference = whole
    run_dir, log = tmp_path / "chosen", tmp_path / "chosen.log"
    keys = {"data.sources": [f"lines:{source}"], "data.root": str(recipe.parent / "data"), "run_dir": str(run_dir)}
    words = [sys.executable, str(Path(__file__).with_name("killed_run.py")), str(recipe), json.dumps(keys)]
    for event, step in (MOMENTS[name] for name in moments):
        assert start([*words, event, str(step)], log).wait(120) == -signal.SIGKILL, log.read_text()[-3000:]
    finish([*words, "never", "0"], log)
    assert figures(run_dir) == figures(reference)
    assert digests(run_dir) == digests(reference)


def figures(run_dir: Path) -> list[dict[str, float]]:
    """The records of the log, without figures that depend on the clock."""
    prefixes = ("step", "train/", "eval/", "baseline/")
    records = read_metrics(run_dir / "metrics.jsonl")
    return [{name: value for name, value in record.items() if name.startswith(prefixes)} for record in records]


@pytest.mark.long  # the suite stops two processes in test_hosts.py, and one in tests/pipeline/test_python_api.py
def test_sigterm_saves_a_checkpoint(whole: tuple[Path, Path, Path], tmp_path: Path) -> None:
    recipe, source, reference = whole
    run_dir, log = tmp_path / "terminated", tmp_path / "terminated.log"
    # With this period, the only checkpoint is the one saved at the signal.
    arguments = command(recipe, source, run_dir, "--training.checkpoint-every", "1000")
    assert stop_after(arguments, log, 0.0, signal.SIGTERM, text="pretraining  20 /") == 75
    assert len(checkpoints(run_dir)) == 1
    assert "stopped after step" in log.read_text()
    assert "run the same command again" in log.read_text()
    finish(command(recipe, source, run_dir), log)
    assert digests(run_dir) == digests(reference)


def test_nothing_is_compiled_after_a_signal(whole: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Compiling might take longer than a preempted machine leaves for saving."""
    recipe, source, _ = whole
    run_dir, log = tmp_path / "late", tmp_path / "late.log"
    keys = {"data.sources": [f"lines:{source}"], "data.root": str(recipe.parent / "data"), "run_dir": str(run_dir)}
    keys |= {"training.checkpoint_every": 1000}
    script = str(Path(__file__).with_name("compiled_late.py"))
    start([sys.executable, script, str(recipe), json.dumps(keys), "5"], log).wait(120)
    output = log.read_text()
    assert len(checkpoints(run_dir)) == 1 and "stopped after step" in output, output[-3000:]
    assert LATE not in output, output[-3000:]


@pytest.mark.long
def test_resume_makes_up_for_an_interrupted_evaluation(whole: tuple[Path, Path, Path], tmp_path: Path) -> None:
    recipe, source, reference = whole
    run_dir, log = tmp_path / "cut", tmp_path / "cut.log"
    arguments = command(recipe, source, run_dir, "--training.eval-every", "30", "--training.log-every", "30")
    long = [*arguments, "--training.eval-rows", "8000"]  # so that the signal comes before the end of the evaluation
    assert stop_after(long, log, 0.0, signal.SIGTERM, text="pretraining  30 /") == 75
    assert checkpoints(run_dir) == ["10", "20", "30"]
    assert evaluated(run_dir) == []
    finish(arguments, log)
    assert evaluated(run_dir) == [30, 60, 90, 120]
    assert digests(run_dir) == digests(reference)


def evaluated(run_dir: Path) -> list[int]:
    """The steps with an evaluation in the log."""
    return [record["step"] for record in read_metrics(run_dir / "metrics.jsonl") if "eval/mlm_loss" in record]


def test_second_trainer_in_a_directory_is_refused(
    whole: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, source, _ = whole
    with own_directory(tmp_path / "run"):  # like the first trainer
        assert main(command(recipe, source, tmp_path / "run")[3:]) == 1
    assert "another process is training there" in capsys.readouterr().err


def test_run_learns_and_writes_all_files(whole: tuple[Path, Path, Path]) -> None:
    _, _, run_dir = whole
    config = json.loads((run_dir / "config.json").read_text())
    assert config["model"]["vocab_size"] == len((run_dir / "vocab.txt").read_text().splitlines())
    records = read_metrics(run_dir / "metrics.jsonl")
    first, last = ([record[key] for record in records if key in record] for key in ("train/mlm_loss", "eval/mlm_loss"))
    assert last[-1] < last[0] < first[0], "the loss did not fall"
    assert f"{last[-1]:.3f}" in (run_dir / "report.html").read_text()
    assert checkpoints(run_dir) == ["100", "110", "120"]
    exported, trained = (open_source(source)[0] for source in (f"hf:{run_dir / 'huggingface'}", str(run_dir)))
    jax.tree.map(np.testing.assert_array_equal, exported.params, trained.params)
