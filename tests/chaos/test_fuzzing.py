"""Run `fuzzing_cases.py`, a short version of fuzzing, in its own process.

Its watch would attribute the threads and the garbage of other tests to a reader.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("fuzzing_cases.py")


@pytest.mark.long
def test_mutated_files_are_read_or_refused_cleanly(in_memory: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    command += ["--basetemp", str(in_memory / "cases")]  # each input is written to a file
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-10_000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed is not None and int(passed[1]) > 40, ended.stdout[-1_000:]
