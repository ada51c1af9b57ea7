"""Processes exit with closed output, and join the processes of a run only once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bertjax.config import HostsConfig
from bertjax.runtime.clusters import ProcessInfo
from bertjax.runtime.processes import Processes

CLOSED_OUTPUT = """
import sys, threading, time
from bertjax.runtime.processes import alone
sys.stderr.close()
sys.stdout.close()
processes = alone()
threading.Thread(target=processes._end, args=("lost process 1", 75)).start()
time.sleep(20)
"""


@pytest.mark.run
def test_process_exits_with_its_output_closed() -> None:
    assert subprocess.run([sys.executable, "-c", CLOSED_OUTPUT], timeout=120).returncode == 75


def test_second_join_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX can join once; without this error, the second run in a script would fail only after the first has trained."""
    monkeypatch.setattr(Processes, "_has_joined", True)
    with pytest.raises(ValueError, match="start a new process for the next run"):
        Processes(ProcessInfo("address", "127.0.0.1:1", 2, 1), HostsConfig()).__enter__()
