"""The short form of `check_faults.py`: some kills, crash points and damages of each kind, and the table."""

from __future__ import annotations

import random
from pathlib import Path

import bit_rot
import crash_points
import pytest
import random_kills
from outcomes import Table, as_markdown

# A read of a damaged checkpoint leaves Orbax's other reads unfinished, and Python says so when it collects them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


def require_all_survived(table: Table, tried: int) -> None:
    assert sum(row.tried for row in table.rows) >= tried
    assert not any(row.failed for row in table.rows), as_markdown(table.rows)


def test_ten_kills_at_random_moments_change_no_bit(tmp_path: Path) -> None:
    random_kills.try_kills(table := Table(), tmp_path, 10, seed=1, names=("pretrain", "finetune", "prepare"))
    require_all_survived(table, 10)


@pytest.mark.skipif(bool(crash_points.MISSING), reason=crash_points.MISSING)
def test_a_dozen_system_calls_that_fail_leave_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    crash_points.try_crash_points(table := Table(), tmp_path, 12, seed=0)
    require_all_survived(table, 12)


def test_three_hundred_damages_are_named_or_change_no_bit(tmp_path: Path) -> None:
    bit_rot.try_bit_rot(table := Table(), tmp_path, 300, seed=0)
    require_all_survived(table, 280)


def test_a_damage_that_passes_in_silence_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rot = bit_rot.Rot(tmp_path)
    kind = bit_rot.Kind(
        "plans", lambda folder: [], lambda folder: sorted(path.read_bytes() for path in folder.rglob("*.npy")), 1
    )
    monkeypatch.setitem(bit_rot.KINDS, "plan", kind)
    (array,) = [path for path in rot.files("plan") if path.name == "a_start.npy"]
    found = rot.tried("plan", "a flipped bit", array, random.Random(0))
    assert found == "what is read has other bits, and nothing was said"


def test_the_table_counts_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    for end in ("old", "new", "old"):
        table.add("save: EIO", end, True, "")
    table.add("save: EIO", "neither", False, "call 3")
    assert "FAILED save: EIO, call 3: neither" in capsys.readouterr().err
    assert "| save: EIO | 4 | 3 | 1 | 1 new, 2 old |\n| sum | 4 | 3 | 1 | |" in as_markdown(table.rows)
