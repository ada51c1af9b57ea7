"""`launch/local.py` with real processes: two train, with two devices each, one is killed, and the job finishes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import checkpoints, digests, write_recipe

REPOSITORY = Path(__file__).resolve().parent.parent.parent
LAUNCHER = [sys.executable, str(REPOSITORY / "launch" / "local.py"), "--processes", "2", "--fake-devices", "2"]
QUICK = ["--training.steps", "80", "--training.checkpoint-every", "20", "--optimizer.warmup-steps", "5"]
QUICK += ["--training.eval-every", "80", "--training.eval-rows", "8", "--training.global-batch-size", "8"]


HOLD = """
import sys
from pathlib import Path
sys.path.append({!r})
from held_up import hold
from bertjax.input.batches import RowBatches
hold(RowBatches, Path({!r}), 60)
"""


class Launched:
    """The launcher in the background, and its output so far."""

    def __init__(self, run: Path, source: Path, *more: str) -> None:
        recipe = write_recipe(run.parent)
        self.go = run.with_suffix(".go")  # processes wait for this file before step 60
        recipe.write_text(f"{recipe.read_text()}{HOLD.format(str(REPOSITORY / 'tests' / 'run'), str(self.go))}")
        keys = ["--data.sources", f"lines:{source}", "--data.root", str(run.parent / "data"), "--run-dir", str(run)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.run, self.log = run, run.with_suffix(".log")
        with self.log.open("w") as file:
            self.process = subprocess.Popen(
                [*LAUNCHER, "--pause", "0.5", str(recipe), *keys, *QUICK, *more],
                env=os.environ | {"PATH": path, "PYTHONPATH": str(REPOSITORY)},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def wait_for_checkpoint(self, step: int, seconds: float = 240) -> None:
        """Wait for the checkpoint of this step or a later one."""
        end = time.monotonic() + seconds
        while not any(int(name) >= step for name in checkpoints(self.run) if name.isdecimal()):
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.02)

    def wait_for_end(self, code: int, seconds: float = 900) -> str:
        """Wait for the end, and return the output."""
        ended = self.process.wait(seconds)
        assert ended == code, self.log.read_text()
        return self.log.read_text()

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()  # also ends its child processes
            self.process.wait()

    def child(self, number: int, seconds: float = 60) -> int:
        """Wait for the process with this number, and return its process id."""
        ps, end = ["ps", "-wweo", "pid=,ppid=,args="], time.monotonic() + seconds
        while time.monotonic() < end:
            listed = subprocess.run(ps, capture_output=True, text=True, check=True).stdout
            for line in listed.splitlines():
                pid, parent, arguments = line.split(None, 2)
                if int(parent) == self.process.pid and f"--hosts.process {number}" in arguments:
                    return int(pid)
        raise AssertionError(f"no process {number}:\n{listed}")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt", 300)


@pytest.mark.long
def test_local_job_survives_a_killed_process(source: Path, tmp_path: Path) -> None:
    with Launched(tmp_path / "run", source) as job:
        child = job.child(1)
        job.wait_for_checkpoint(20)
        os.kill(child, signal.SIGKILL)
        job.go.touch()
        output = job.wait_for_end(0)
    assert "process 1 ended with exit code 137; ending the others" in output
    assert re.search(r"resumes from the checkpoint of step \d+", output) and "\n[1] " in output
    assert digests(tmp_path / "run")["at step"] == "80"
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.long
def test_local_job_ends_with_code_75_on_sigterm(source: Path, tmp_path: Path) -> None:
    with Launched(tmp_path / "run", source, "--training.steps", "4000") as job:
        job.wait_for_checkpoint(20)
        job.process.send_signal(signal.SIGTERM)
        job.go.touch()
        output = job.wait_for_end(75, 60)
    assert "resumes from" not in output
    step = int(digests(tmp_path / "run")["at step"])
    assert step >= 20
    with Launched(tmp_path / "run", source, "--training.steps", str(step + 4)) as job:
        job.wait_for_end(0)
