"""How a process ends, whatever is wrong with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bertjax.config import HostsConfig
from bertjax.runtime.clusters import ProcessInfo
from bertjax.runtime.processes import Processes

WITHOUT_EARS = """
import sys, threading, time
from bertjax.runtime.processes import alone
sys.stderr.close()
sys.stdout.close()
processes = alone()
threading.Thread(target=processes._end, args=("lost process 1", 75)).start()
time.sleep(20)
"""


def test_a_process_whose_output_nobody_reads_ends_all_the_same() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT_EARS], timeout=120).returncode == 75


def test_a_process_that_has_joined_others_is_told_before_it_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX joins once; the second run of a script would end after the first has trained."""
    monkeypatch.setattr(Processes, "_has_joined", True)
    with pytest.raises(ValueError, match="start a new process for the next run"):
        Processes(ProcessInfo("address", "127.0.0.1:1", 2, 1), HostsConfig()).__enter__()
