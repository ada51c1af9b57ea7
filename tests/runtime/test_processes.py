"""How a process ends, whatever is wrong with it."""

from __future__ import annotations

import subprocess
import sys

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
