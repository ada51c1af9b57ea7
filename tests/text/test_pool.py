"""Worker processes: a result for every unit, unchanged errors, and dead workers reported with their files."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from bertjax.text import pool
from bertjax.text.corpus import Unit
from bertjax.text.pool import StoppedWorker, run_units
from bertjax.text.sources.source import SourceFile

pytestmark = pytest.mark.run
UNITS = [Unit(number, 0, (SourceFile("text", f"part{number}.txt"),), 1) for number in range(7)]


def number_and_process(unit):
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    leave_process_number()
    wait_until(two_processes)  # else the first to start might run all units
    return unit.number, os.getpid()


def leave_process_number():
    Path(os.environ["NUMBERS"], str(os.getpid())).touch()


def two_processes():
    return len(os.listdir(os.environ["NUMBERS"])) == 2


def refuse_three(unit):
    if unit.number == 3:
        raise ValueError("part3.txt is bad")
    return unit.number


def die_at_four(unit):
    if unit.number == 4:
        os._exit(9)
    return unit.number


def test_every_unit_is_done_once_outside_this_process(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBERS", str(tmp_path))
    results = {unit.number: result for unit, result in run_units(number_and_process, UNITS, "testing", workers=2)}
    assert {number: result[0] for number, result in results.items()} == {number: number for number in range(7)}
    processes = {process for _, process in results.values()}
    assert len(processes) == 2 and os.getpid() not in processes


def test_one_worker_is_this_process():
    assert [result for _, result in run_units(lambda unit: os.getpid(), UNITS, "testing", workers=1)] == [
        os.getpid()
    ] * 7
    assert list(run_units(refuse_three, [], "testing", workers=4)) == []


def test_few_files_are_named():
    unit = Unit(0, 0, tuple(SourceFile("text", f"{number}.txt") for number in range(1200)), 1)
    assert pool.file_names([unit, unit]) == "0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 1,195 more"


def test_errors_keep_their_type():
    with pytest.raises(ValueError, match=r"^part3\.txt is bad$"):
        list(run_units(refuse_three, UNITS, "testing", workers=2))


ORPHANS = """
import os, sys, time
sys.path.insert(0, {folder!r})
from test_pool import UNITS, run_units, leave_process_number_and_sleep
if __name__ == "__main__":
    list(run_units(leave_process_number_and_sleep, UNITS, "testing", workers=2))
"""


def leave_process_number_and_sleep(unit):
    leave_process_number()
    time.sleep(600)


def test_workers_end_with_their_parent(tmp_path, monkeypatch):
    (tmp_path / "orphans.py").write_text(ORPHANS.format(folder=os.path.dirname(__file__)))
    (tmp_path / "numbers").mkdir()
    monkeypatch.setenv("NUMBERS", str(tmp_path / "numbers"))
    parent = subprocess.Popen([sys.executable, str(tmp_path / "orphans.py")])
    wait_until(two_processes)
    parent.kill()
    parent.wait()
    workers = [Path("/proc") / number.name for number in (tmp_path / "numbers").iterdir()]
    wait_until(lambda: not any(is_alive(worker) for worker in workers))


def is_alive(process):
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it ended, perhaps just now
        return False


def wait_until(happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_dead_worker_is_named_with_its_files():
    with pytest.raises(RuntimeError, match=r"^testing: a worker process died .* at one of: .*data\.workers") as error:
        list(run_units(die_at_four, UNITS, "testing", workers=2))
    names = re.findall(r"part\d\.txt", str(error.value))
    assert "part4.txt" in names and len(names) <= 2


def stop_at_four(unit):
    if unit.number == 4:
        os.kill(os.getpid(), signal.SIGSTOP)
    return unit.number


@pytest.mark.skipif(sys.platform != "linux", reason="the states of processes are read from /proc")
def test_stopped_worker_is_named_with_its_files(monkeypatch):
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
    with pytest.raises(
        StoppedWorker, match=r"^testing: worker process \d+ is stopped .* at one of: .*part4\.txt"
    ) as error:
        list(run_units(stop_at_four, UNITS, "testing", workers=2))
    assert error.value.exit_code == 75


def leave_process_number_and_wait_to_go_on(unit):
    leave_process_number()
    wait_until(lambda: Path(os.environ["NUMBERS"], "go on").exists())
    return unit.number


@pytest.mark.skipif(sys.platform != "linux", reason="the states of processes are read from /proc")
def test_continued_worker_is_not_lost(tmp_path, monkeypatch):
    """A worker that continues after one check too few to count as lost finishes its work."""
    monkeypatch.setenv("NUMBERS", str(tmp_path))
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
    checks, is_stopped = [], pool._is_stopped

    def look(worker):
        if two_processes() and not sum(checks):
            os.kill(worker.pid, signal.SIGSTOP)
            wait_until(lambda: is_stopped(worker))
        checks.append(is_stopped(worker))
        if checks[-1] and sum(checks) == pool.LOOKS - 1:
            os.kill(worker.pid, signal.SIGCONT)
            wait_until(lambda: not is_stopped(worker))
            (tmp_path / "go on").touch()
        return checks[-1]

    monkeypatch.setattr(pool, "_is_stopped", look)
    assert sorted(
        unit.number for unit, _ in run_units(leave_process_number_and_wait_to_go_on, UNITS, "testing", workers=2)
    ) == list(range(7))
    assert sum(checks) == pool.LOOKS - 1


@pytest.mark.skipif(sys.platform != "linux", reason="the states of processes are read from /proc")
def test_stopped_idle_worker_blocks_nothing():
    """Once all results exist, the pool ends and kills the stopped worker."""
    results = run_units(number, UNITS[:2], "testing", workers=2)
    first = next(results)
    for worker in multiprocessing.active_children():
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(partial(pool._is_stopped, worker))
    assert first[1] in (0, 1)
    results.close()
    assert not multiprocessing.active_children()


def number(unit):
    return unit.number
