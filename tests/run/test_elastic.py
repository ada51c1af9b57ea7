"""After hosts are lost, a run resumes on the remaining ones with the same batches."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import pytest
from generated_corpus import write_corpus
from several_processes import Group
from tiny_runs import checkpoints, command, write_recipe

from bertjax.run.telemetry import read_metrics

LIMIT = 600.0  # seconds; the survivors exit much earlier
STEPS = 40


def logged(run_dir: Path, name: str) -> list[tuple[int, float]]:
    return [(record["step"], record[name]) for record in read_metrics(run_dir / "metrics.jsonl") if name in record]


@pytest.mark.long
def test_run_resumes_on_fewer_hosts(tmp_path: Path) -> None:
    recipe, source = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 300)
    overrides = [
        *("--training.steps", str(STEPS), "--optimizer.warmup-steps", "5", "--training.log-every", "1"),
        *("--training.eval-every", str(STEPS), "--training.checkpoint-every", "5"),
    ]

    def start(name: str, processes: int, log: str) -> Group:
        # The run that loses a host also verifies its steps, which does not change its bits.
        checks = ["--training.verify-every", "8", "--training.digest-every", "4"] if name == "lost" else []
        return Group(command(recipe, source, tmp_path / name, *overrides, *checks), processes, tmp_path / log)

    for processes in (2, 4):  # the undisturbed runs, which also fill the compilation cache
        with start(f"whole-{processes}", processes, f"whole-{processes}.log") as group:
            group.finish()
    with start("lost", 4, "four.log") as group:
        group.wait_for("pretraining  11 /")
        group.send(3, signal.SIGKILL)
        lost_at = time.monotonic()
        codes = group.wait(LIMIT)
        notice_seconds = time.monotonic() - lost_at
        assert codes == [75, 75, 75, -9], group.output()
    # An interrupted save leaves a temporary folder.
    steps_before = max(int(name) for name in checkpoints(tmp_path / "lost") if name.isdecimal())
    with start("lost", 2, "two.log") as group:
        group.wait_for(f"pretraining  {steps_before + 1} /")
        resume_seconds = time.monotonic() - lost_at
        group.finish()
    print(f"\nlost host noticed in {notice_seconds:.1f} s; first step on 2 of 4 hosts after {resume_seconds:.1f} s")
    # Tokens without padding are counted exactly, so equal counts mean that every step has read the same rows.
    tokens = logged(tmp_path / "lost", "train/tokens_seen")
    for processes in (2, 4):
        assert tokens == logged(tmp_path / f"whole-{processes}", "train/tokens_seen")
        here, there = (dict(logged(tmp_path / n, "train/loss")) for n in ("lost", f"whole-{processes}"))
        assert here.keys() == there.keys() and len(here) == STEPS
        np.testing.assert_allclose([*here.values()], [*there.values()], rtol=1e-4)
