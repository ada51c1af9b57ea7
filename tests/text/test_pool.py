"""Worker processes: results of every unit, errors as they were raised, and a death told with its files."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertjax.text.corpus import Unit
from bertjax.text.pool import run_units
from bertjax.text.sources.source import SourceFile

UNITS = [Unit(number, 0, (SourceFile("text", f"part{number}.txt"),), 1) for number in range(7)]


def number_and_process(unit):
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    leave_process_number()
    wait_until(two_processes)  # or the first to start might do them all
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


def test_errors_come_as_they_were():
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


def test_a_dead_worker_is_named_with_its_files():
    with pytest.raises(RuntimeError, match=r"^testing: a worker process died .* at one of: .*data\.workers") as told:
        list(run_units(die_at_four, UNITS, "testing", workers=2))
    named = re.findall(r"part\d\.txt", str(told.value))
    assert "part4.txt" in named and len(named) <= 2
