"""Processes: the end of a process with closed output, and the second join."""

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
def test_process_ends_although_its_output_is_closed() -> None:
    assert subprocess.run([sys.executable, "-c", CLOSED_OUTPUT], timeout=120).returncode == 75


def test_a_second_join_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX joins once: otherwise the second run of a script would end after the first has trained."""
    monkeypatch.setattr(Processes, "_has_joined", True)
    with pytest.raises(ValueError, match="start a new process for the next run"):
        Processes(ProcessInfo("address", "127.0.0.1:1", 2, 1), HostsConfig()).__enter__()
