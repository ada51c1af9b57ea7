"""Runs that step in turns of some seconds: a machine whose speed drifts is then equally fast for all of them."""

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
_WARM = 25  # steps before the first turn: programs are compiled in the first of each shape
_SECONDS = 6.0  # of a turn


class Run(NamedTuple):
    """A command that trains, and the file into which it writes a line of JSON with the seconds of each step."""

    command: Sequence[str]
    file: Path


class _Stepping:
    """A run's process, stopped but for its turns."""

    def __init__(self, run: Run) -> None:
        self._file = run.file
        self._process = subprocess.Popen(run.command, stdout=subprocess.DEVNULL)

    def __enter__(self) -> _Stepping:
        while len(self._seconds()) < _WARM:
            assert self._process.poll() is None, f"ended with exit code {self._process.returncode}"
            time.sleep(0.2)
        self._process.send_signal(signal.SIGSTOP)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()

    def turn(self) -> list[float]:
        """The seconds of each step of a turn, without the one that the last turn's end interrupted.

        A turn has at least one step: it is longer where a program is compiled in it.
        """
        before, end = len(self._seconds()), time.monotonic() + _SECONDS
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
    """Name of a run -> the seconds of each step of each of its turns. Who is first alternates; all are killed then."""
    found: dict[str, list[list[float]]] = {name: [] for name in runs}
    with ExitStack() as stack:
        stepping = {name: stack.enter_context(_Stepping(run)) for name, run in runs.items()}
        for turn in range(turns):
            for name in list(runs)[:: -1 if turn % 2 else 1]:
                found[name].append(stepping[name].turn())
    return found


def steps_of(turns: Sequence[Sequence[float]]) -> list[float]:
    """The seconds of the steps of all turns, without those of three times the median: a program was compiled there."""
    every = [seconds for steps in turns for seconds in steps]
    return [seconds for seconds in every if seconds < 3 * statistics.median(every)]
