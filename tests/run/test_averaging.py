"""The mean of a run's checkpoints is that of their arrays, and a run that the other verbs read."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, write_recipe

import bertjax
from bertjax.__main__ import main
from bertjax.run.averaging import average, write_moving_average
from bertjax.run.checkpoint import read_metadata
from bertjax.run.run_directory import load_run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that keeps its checkpoints at steps 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("average")
    corpus = write_corpus(folder / "corpus.txt", 60)
    keys = {"data.sources": (f"lines:{corpus}",), "data.root": str(folder / "data"), "run_dir": str(folder / "run")}
    keys |= SIX_STEPS | {"training.checkpoint_every": 2, "training.keep_last": 3, "optimizer.average_decay": 0.25}
    bertjax.pretrain(bertjax.recipe(write_recipe(folder), keys))
    return folder / "run"


@pytest.mark.parametrize("last", [2, 3])  # a half is exact, a third is not
def test_the_mean_is_that_of_the_arrays_in_float64(run: Path, tmp_path: Path, last: int) -> None:
    made = average(run, last, tmp_path / "mean")
    assert made.steps == (2, 4, 6)[-last:]
    found = load_run(made.directory)
    sources = [load_run(run / "checkpoints" / str(step)).params for step in made.steps]
    whole = [jax.tree.map(lambda x: np.asarray(x, np.float64), params) for params in sources]
    wanted = jax.tree.map(lambda *each: (sum(each) / last).astype(np.float32), *whole)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.params), wanted)
    assert found.step == 6 and found.config.model == load_run(run).config.model
    told = read_metadata(made.directory)["averaged"]
    assert [of["step"] for of in told] == [*made.steps] and len({of["digest"] for of in told}) == last


def test_other_verbs_read_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mean = tmp_path / "mean"
    assert main(["run", "average", str(run), "--last", "3", "--output", str(mean)]) == 0
    assert "the mean of 3 checkpoints, 2, 4, 6" in capsys.readouterr().out
    assert main(["evaluate", str(mean)]) == 0
    assert "step 6 of" in capsys.readouterr().out


def test_the_moving_average_is_that_of_the_updates(run: Path, tmp_path: Path) -> None:
    """Of checkpoints two updates apart, with a decay of a quarter: nearer to the newest than to the ones before."""
    made = write_moving_average(run, tmp_path / "moving")
    found, *sources = (load_run(path).params for path in (made.directory, *sorted((run / "checkpoints").iterdir())))
    found, *sources = (np.concatenate([x.ravel() for x in jax.tree.leaves(p)]) for p in (found, *sources))
    off = [float(np.linalg.norm(found - source)) for source in sources]
    assert len(off) == 3 and 0 < off[2] < 0.5 * off[1] < off[0]
    told = read_metadata(made.directory)["averaged"]
    assert [(of["step"], of["decay"], of["updates"]) for of in told] == [(6, 0.25, 6)]


def test_moving_average_is_of_the_newest_checkpoint(run: Path, tmp_path: Path) -> None:
    """Also where training stopped early, and other verbs read the best one."""
    shutil.copytree(run, tmp_path / "run")
    shutil.move(tmp_path / "run" / "checkpoints" / "2", tmp_path / "run" / "best" / "2")
    assert load_run(tmp_path / "run").step == 2
    assert write_moving_average(tmp_path / "run").steps == (6,)


def test_what_cannot_be_averaged_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (
            ["--last", "5"],
            "keeps 3 checkpoint(s) (2, 4, 6); give a smaller --last, or train with --training.keep-last 5",
        ),
        (["--last", "1"], "--last 1: a mean takes 2 checkpoints or more"),
        (["--last", "2", "--output", str(run)], "it is not empty; choose another (--output), or move it away"),
    ):
        assert main(["run", "average", str(run), *words]) == 1
        assert said in capsys.readouterr().err
