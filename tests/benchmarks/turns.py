"""Let runs step in turns of some seconds, so that a machine's drifting speed affects all of them alike."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

STEP_SECONDS = "perf/step_seconds"
_WARM_UP = 25  # steps before the first turn, which compile a program for each shape
_TURN = 6.0  # seconds


class Run(NamedTuple):
    """A training command, and its log: a line of JSON with the seconds of each step."""

    command: Sequence[str]
    file: Path


class _Stepping:
    """The process of a run, which is stopped between its turns."""

    def __init__(self, run: Run) -> None:
        self._file = run.file
        self._process = subprocess.Popen(run.command, stdout=subprocess.DEVNULL)

    def __enter__(self) -> _Stepping:
        while len(self._seconds()) < _WARM_UP:
            assert self._process.poll() is None, f"ended with exit code {self._process.returncode}"
            time.sleep(0.2)
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()

    def turn(self) -> list[float]:
        """Run a turn, and return the seconds of its steps, without the step that the previous turn interrupted.

        A turn has at least one step, so it is longer if a program is compiled.
        """
        before, end = len(self._seconds()), time.monotonic() + _TURN
        self._process.send_signal(signal.SIGCONT)
        while time.monotonic() < end or len(self._seconds()) < before + 2:
            time.sleep(0.5)
        self._process.send_signal(signal.SIGSTOP)
        return self._seconds()[before + 1 :]

    def _seconds(self) -> list[float]:
        lines = self._file.read_text().splitlines(keepends=True) if self._file.is_file() else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record[STEP_SECONDS] for record in records if STEP_SECONDS in record]


def in_turns(runs: Mapping[str, Run], turns: int) -> dict[str, list[list[float]]]:
    """Run the turns and kill all runs. Returns {run: seconds of the steps of each turn}. The first run alternates."""
    seconds: dict[str, list[list[float]]] = {name: [] for name in runs}
    with ExitStack() as stack:
        stepping = {name: stack.enter_context(_Stepping(run)) for name, run in runs.items()}
        for turn in range(turns):
            for name in list(runs)[:: -1 if turn % 2 else 1]:
                seconds[name].append(stepping[name].turn())
    return seconds


def pool_steps(turns: Sequence[Sequence[float]]) -> list[float]:
    """The seconds of the steps of all turns, without outliers of three times the median, which compiled a program."""
    pooled = [seconds for steps in turns for seconds in steps]
    return [seconds for seconds in pooled if seconds < 3 * statistics.median(pooled)]
