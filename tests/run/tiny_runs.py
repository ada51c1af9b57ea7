"""Tiny runs, started through the real command line in a separate process, to be killed and restarted many times."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from several_processes import child_environment, zygote

import bertjax
from bertjax.config import Config
from bertjax.run.callbacks import Callback
from bertjax.run.checkpoint import DIRECTORY, read_metadata
from bertjax.run.job import Job
from bertjax.run.loop import Outcome
from bertjax.run.train_job import Say, train_job
from bertjax.runtime.processes import alone

RECIPE = """
from bertjax.config import Config, DataConfig, ExecutionConfig, ModelConfig, OptimizerConfig, TrainingConfig

def config():
    return Config(
        name="tiny",
        model=ModelConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                          max_position_embeddings=32),
        execution=ExecutionConfig(logits_chunk=32),
        data=DataConfig(vocab_size=1200, sequence_length=32, max_predictions=5, held_out=0.1, workers=1),
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=10),
        training=TrainingConfig(steps=120, global_batch_size=8, log_every=20, eval_every=60, eval_rows=32,
                                checkpoint_every=10, keep_last=3),
    )
"""

# Keys that shorten the recipe to six steps, with one evaluation and one checkpoint at the end.
SIX_STEPS = {
    "optimizer.warmup_steps": 2,
    "training.steps": 6,
    "training.log_every": 2,
    "training.eval_every": 6,
    "training.eval_rows": 16,
    "training.checkpoint_every": 6,
}


def write_recipe(folder: Path) -> Path:
    path = folder / "tiny_recipe.py"
    path.write_text(RECIPE)
    return path


def tiny_config(folder: Path, run: str, keys: Mapping[str, Any]) -> Config:
    """The config of a run in a folder with `write_recipe`'s recipe and a corpus.txt."""
    where = {"data.sources": (f"lines:{folder / 'corpus.txt'}",), "data.root": str(folder / "data")}
    return bertjax.recipe(folder / "tiny_recipe.py", {**keys, **where, "run_dir": str(folder / run)})


def command(recipe: Path, source: Path, run_dir: Path, *overrides: str) -> list[str]:
    """The command line of a run; the same command resumes it."""
    fixed = ["--data.sources", f"lines:{source}", "--data.root", str(recipe.parent / "data"), "--run-dir", str(run_dir)]
    return [sys.executable, "-m", "bertjax", "pretrain", str(recipe), *fixed, *overrides]


class Run:
    """A command that runs in a separate process, with an interface like subprocess.Popen."""

    def __init__(self, arguments: list[str], log: Path, devices: int = 1) -> None:
        log.touch()
        self._number = zygote().start(arguments, log, child_environment(devices), Path.cwd(), append=True)

    def poll(self) -> int | None:
        return zygote().codes.get(self._number)

    def wait(self, timeout: float = 600) -> int:
        code = zygote().wait(self._number, timeout)
        if code is None:
            raise subprocess.TimeoutExpired("bertjax", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._number, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(arguments: list[str], log: Path, devices: int = 1) -> Run:
    """Start a run on `devices` CPU devices; its output is appended to `log`."""
    return Run(arguments, log, devices)


def finish(arguments: list[str], log: Path, timeout: float = 300, devices: int = 1) -> None:
    """Run a command to its end; on failure, raises an error with its output."""
    run = start(arguments, log, devices)
    try:
        code = run.wait(timeout)
    except subprocess.TimeoutExpired:
        run.kill()
        raise
    assert code == 0, f"exit code {code}:\n{log.read_text()[-3000:]}"


def stop_after(
    arguments: list[str], log: Path, seconds: float, number: signal.Signals, text: str = "data pipeline: "
) -> int | None:
    """Start a run, send a signal `seconds` after it prints `text`; returns the exit code, None if it ended before."""
    before = log.read_text().count(text) if log.exists() else 0
    process = start(arguments, log)
    while log.read_text().count(text) == before:
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.poll()} before it printed {text!r}:\n{log.read_text()[-3000:]}")
        time.sleep(0.02)
    try:
        process.wait(seconds)
        return None
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        return process.wait(120)


def stop_held(arguments: list[str], log: Path, number: signal.Signals, text: str, step: int, file: Path) -> int:
    """Start a run, hold it before step `step`, and send a signal once it prints `text`; returns the exit code."""
    file.unlink(missing_ok=True)
    before = log.read_text().count(text) if log.exists() else 0
    assert arguments[1:3] == ["-m", "bertjax"]
    script = str(Path(__file__).with_name("held_up.py"))
    process = start([arguments[0], script, str(file), str(step), *arguments[3:]], log)
    while log.read_text().count(text) == before:
        assert process.poll() is None, f"ended before it printed {text!r}:\n{log.read_text()[-3000:]}"
        time.sleep(0.02)
    process.send_signal(number)
    file.touch()
    return process.wait(120)


def essential_lines(output: str) -> list[str]:
    """Drop lines about work that takes long, which may appear for any work on a loaded machine."""
    return [line for line in output.splitlines() if not re.fullmatch(r"[^:]+… \(.* s\)", line)]


def train_alone(job: Job, say: Say = lambda line: None, callbacks: Sequence[Callback] = ()) -> Outcome:
    """Train a job in this process."""
    with alone() as processes:
        return train_job(job, processes, say, callbacks=callbacks)


def digests(run_dir: Path) -> dict[str, str]:
    """Digests of all arrays in the newest checkpoint: parameters, moments and counters."""
    metadata = read_metadata(run_dir)
    return {name: array["digest"] for name, array in metadata["arrays"].items()} | {"at step": str(metadata["step"])}


def checkpoints(run_dir: Path) -> list[str]:
    """The names in a run's folder of checkpoints."""
    folder = run_dir / DIRECTORY
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
