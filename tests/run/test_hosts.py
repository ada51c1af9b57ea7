"""Runs on several real processes: batches, checkpoints, signals and losses. Full matrices are in check_*.py."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import steps_on_hosts
from generated_corpus import write_corpus
from hosts_matrix import STEPS, Matrix, Shape
from several_processes import Group, as_words
from tiny_runs import checkpoints, command, digests, finish, write_recipe

from bertjax.config import load_recipe, override

HERE = Shape(1, 8)  # this process
FSDP = Shape(2, 2, fsdp=2)
TENSOR = Shape(4, 1, tensor=2)  # pairs of processes share rows
LENGTH = Shape(2, 1, length=2)  # every row is split over both processes

GRACE = 120  # seconds to exit while other tests run; check_preemption.py allows 30, and 60 after a SIGKILL
SHORT = [
    *("--training.steps", "20"),
    *("--optimizer.warmup-steps", "5"),
    *("--training.log-every", "1"),
    *("--training.eval-every", "10"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Recipe and corpus."""
    folder = tmp_path_factory.mktemp("hosts")
    return write_recipe(folder), write_corpus(folder / "corpus.txt", 100)


@pytest.mark.long
def test_batches_losses_and_checkpoints_on_other_shapes(files: tuple[Path, Path]) -> None:
    recipe, source = files
    matrix = Matrix(recipe.parent, recipe, source)
    job = matrix.job(HERE, steps=STEPS, save=True, restore=[])
    matrix.seen[HERE.name] = [
        json.loads(json.dumps(steps_on_hosts.run(override(load_recipe(recipe), job["overrides"], "here"), job)))
    ]
    matrix.run(FSDP, save=True, restore=[HERE])
    matrix.run(TENSOR, restore=[HERE, FSDP])
    matrix.run(LENGTH, save=True, restore=[HERE])
    for shape in (FSDP, TENSOR, LENGTH):
        assert matrix.rows(shape) == matrix.rows(HERE)
        np.testing.assert_allclose(matrix.losses(shape), matrix.losses(HERE), rtol=1e-5)
    assert (
        matrix.row_counts(FSDP) == [4, 4]
        and matrix.row_counts(TENSOR) == [4] * 4
        and matrix.row_counts(LENGTH) == [8] * 2
    )
    back = steps_on_hosts.run(
        override(load_recipe(recipe), job["overrides"], "here"),
        matrix.job(HERE, steps=1, save=False, restore=[FSDP, LENGTH]),
    )
    assert len(jax.devices()) == 8 and min(back["restored"]) > 0


@pytest.fixture(scope="module")
def whole(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an undisturbed run in one process with two devices."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    finish(short(files, run_dir), run_dir.with_suffix(".log"), devices=2)
    assert (run_dir / "huggingface" / "model.safetensors").is_file()
    return run_dir


def short(files: tuple[Path, Path], run_dir: Path) -> list[str]:
    """The command of a run of 20 steps."""
    return command(*files, run_dir, *SHORT, "--training.checkpoint-every", "10")


@pytest.mark.run
def test_two_processes_stop_resume_and_match_one(files: tuple[Path, Path], whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "stopped"
    with Group(short(files, run_dir), 2, tmp_path / "stopped.log") as group:
        group.wait_for("pretraining  4 / 20")
        group.send(1, signal.SIGTERM)
        assert group.wait(GRACE) == [75, 75]
        assert "stopped after step" in group.logs[0]
        assert "process 0/2, 1/2 devices, reads rows 0-3 of each 8" in group.logs[0]
        assert "process 1/2, 1/2 devices, reads rows 4-7 of each 8" in group.logs[1]
    stopped = max(map(int, checkpoints(run_dir)))
    assert 4 <= stopped < 20
    with Group(short(files, run_dir), 2, tmp_path / "resumed.log") as group:
        group.finish()
        assert "held-out text" in group.logs[0] and "held-out text" not in group.logs[1]
    assert (run_dir / "huggingface" / "model.safetensors").is_file()
    assert digests(run_dir) == digests(whole)


@pytest.mark.long  # the suite tests a lost process in test_heartbeat.py, and kills whole runs in tests/chaos
def test_killed_process_ends_the_run_which_resumes(files: tuple[Path, Path], whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "killed"
    with Group(short(files, run_dir), 2, tmp_path / "killed.log") as group:
        group.wait_for("held out", 0)  # at step 10 or 20
        group.send(1, signal.SIGKILL)
        assert group.wait(GRACE) == [75, -9]
        assert "lost process 1" in group.logs[0]
    with Group(short(files, run_dir), 2, tmp_path / "resumed.log") as group:
        group.finish()
    assert digests(run_dir) == digests(whole)


@pytest.mark.long
def test_hosts_train_evaluate_and_inspect_from_a_store_alone(files: tuple[Path, Path], tmp_path: Path) -> None:
    """The run reads a moved store without its sources, and ends with the bits of the run that prepared it."""
    recipe, source = files[0], tmp_path / "text" / "corpus.txt"
    source.parent.mkdir()
    shutil.copy(files[1], source)
    overrides = [*SHORT, "--training.steps", "6", "--data.root", str(tmp_path / "data"), "--training.eval-every", "6"]
    with Group(command(recipe, source, tmp_path / "whole", *overrides), 1, tmp_path / "whole.log", devices=2) as group:
        group.finish()
    (store,) = (tmp_path / "data").glob("store-*")
    moved = shutil.move(store, tmp_path / "moved")
    shutil.rmtree(source.parent)
    shutil.rmtree(tmp_path / "data")
    start = [sys.executable, "-m", "bertjax"]
    alone = ["pretrain", str(recipe), "--run-dir", str(tmp_path / "run"), "--data.store", str(moved), *overrides]
    with Group([*start, *alone], 2, tmp_path / "run.log") as group:
        group.finish()
        assert "process 1/2, 1/2 devices, reads rows 4-7 of each 8" in group.logs[1]
    assert digests(tmp_path / "run") == digests(tmp_path / "whole")
    for verb in (["evaluate", str(tmp_path / "run")], ["inspect", str(moved)]):
        with Group([*start, *verb], 1, tmp_path / f"{verb[0]}.log") as group:
            group.finish()
            assert "mlm" in group.logs[0].lower() or "documents" in group.logs[0], group.output()


@pytest.mark.long
def test_processes_stopped_while_compiling_save_nothing(files: tuple[Path, Path], tmp_path: Path) -> None:
    run_dir = tmp_path / "stopped"
    with Group(command(*files, run_dir, *SHORT), 2, tmp_path / "stopped.log") as group:
        group.wait_for("reads rows", 1)
        group.send(1, signal.SIGTERM)
        assert group.wait(GRACE) == [75, 75]
        assert all("stopped before the first step" in log for log in group.logs), group.output()
    assert checkpoints(run_dir) == []


@pytest.mark.run
def test_checkpoint_unreadable_in_one_process_is_left_out(tmp_path: Path) -> None:
    script = [sys.executable, Path(__file__).with_name("restore_on_hosts.py"), tmp_path / "checkpoints"]

    with Group(script, 2, tmp_path / "restored.log", address=as_words) as group:
        group.finish(60)
    damaged = f"checkpoint {tmp_path}/checkpoints/2 is damaged:"
    assert f"refused: {damaged} process 1 cannot read it" in group.logs[0], group.output()
    assert f"refused: {damaged} state cannot be read" in group.logs[1], group.output()
    assert all("restored 1 checkpoint" in log and "set aside as" in log for log in group.logs), group.output()
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2.damaged"]


@pytest.mark.long
def test_unshared_run_directory_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, source = files
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    arguments = command(recipe, source, Path("run"), *SHORT)  # relative to different folders
    folders = [tmp_path / "a", tmp_path / "b"]
    with Group(arguments, 2, tmp_path / "apart.log", folders=folders) as group:
        assert group.wait(120) == [1, 1]
        for log in group.logs:
            assert "run_dir=run: process 1 (" in log and "cannot read what process 0 (" in log, group.output()


@pytest.mark.long
def test_missing_or_different_hosts_are_reported(files: tuple[Path, Path], tmp_path: Path) -> None:
    recipe, source = files
    arguments = command(recipe, source, tmp_path / "run", *SHORT, "--hosts.join-seconds", "2")
    with (
        Group(arguments, 3, tmp_path / "first.log", numbers=[0]) as first,
        Group(arguments, 3, tmp_path / "lonely.log", numbers=[2]) as lonely,
        Group([*arguments, "--hosts.devices", "3", "--hosts.join-seconds", "60"], 2, tmp_path / "few") as few,
    ):
        assert first.wait(60) == [1] and lonely.wait(60) == [1]
        assert f"of 3 processes, 1, 2 did not connect to {first.coordinator} within 2 s" in first.logs[0]
        assert f"process 2 of 3: nothing answers at {lonely.coordinator}" in lonely.logs[0]
        assert few.wait(60) == [1, 1]
        assert all("hosts.devices=3, but the 2 processes have 2 cpu devices" in log for log in few.logs), few.output()
    assert not (tmp_path / "run").exists()
