"""A short version of `check_faults.py`: some kills, crash points and damages of each kind, and the table."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

import bit_rot
import crash_points
import hangs
import pytest
import random_kills
from outcomes import Share, Table, as_markdown

# Reading a damaged checkpoint leaves Orbax's other reads unfinished, and Python warns when it collects them.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


def require_all_survived(table: Table, tried: int) -> None:
    assert table.tried >= tried
    assert not table.failed, as_markdown(table.rows)


@pytest.mark.long  # the suite kills at chosen moments, in tests/run/test_resume.py and tests/text/test_prepare.py
@pytest.mark.parametrize("name", ["pretrain", "fine-tuning", "prepare"])
def test_kill_at_a_random_moment_changes_no_bit(name: str, in_memory: Path) -> None:
    random_kills.try_kills(table := Table(), in_memory, 1, Share(seed=1), (name,))
    require_all_survived(table, 1)
    assert {row.name.partition(":")[0] for row in table.rows} == {name}


@pytest.mark.skipif(bool(crash_points.MISSING), reason=crash_points.MISSING)
def test_failing_system_calls_leave_the_old_or_new_state(tmp_path: Path) -> None:
    crash_points.try_crash_points(table := Table(), tmp_path, 8, Share())
    require_all_survived(table, 8)


@pytest.mark.long  # the test above covers failing calls in the suite
@pytest.mark.skipif(bool(crash_points.MISSING), reason=crash_points.MISSING)
def test_save_on_a_read_only_disk_has_one_error(tmp_path: Path) -> None:
    library, tries = crash_points.build_library(tmp_path), 8
    script = Path(__file__).with_name("read_only_saves.py")
    command = [sys.executable, str(script), str(tmp_path), str(library), str(hangs.READ_ONLY_FROM), str(tries)]
    surrounding = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(script.parents[2])}
    ended = subprocess.run(command, env=surrounding, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr and "Error" not in ended.stderr, ended.stderr
    assert ended.stdout.count("Read-only file system") == ended.stdout.count("\n") == tries, ended.stdout


@pytest.mark.long  # test_verify.py damages each file in the suite
def test_bit_rot_is_named_or_changes_no_bit(in_memory: Path) -> None:
    bit_rot.try_bit_rot(table := Table(), in_memory, 150, Share())
    require_all_survived(table, 140)
    tried = {tuple(row.name.split(": ")) for row in table.rows}
    assert {kind for kind, _ in tried} == {*bit_rot.KINDS} and {damage for _, damage in tried} == {*bit_rot.DAMAGES}


@pytest.mark.parametrize(
    "part", [random_kills.try_kills, crash_points.try_crash_points, bit_rot.try_bit_rot, hangs.try_hangs]
)
def test_campaigns_refuse_unknown_names(part, tmp_path: Path) -> None:
    if part is crash_points.try_crash_points and crash_points.MISSING:
        pytest.skip(crash_points.MISSING)
    with pytest.raises(ValueError, match="unknown name finetune; choose from "):
        part(Table(), tmp_path, 1, Share(), ("finetune",))


def test_bit_rot_counts_silent_damage_as_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make_row_counts(folder: Path, seed: int, earlier: bool = False) -> Path:
        bit_rot._row_counts(folder / "rows", seed, 5 if earlier else 9)
        return folder

    monkeypatch.setattr(bit_rot, "make_everything", make_row_counts)
    rot = bit_rot.Rot(tmp_path)
    kind = bit_rot.Kind(
        "rows", lambda folder: [], lambda folder: sorted(path.read_bytes() for path in folder.rglob("*.json")), 1
    )
    monkeypatch.setitem(bit_rot.KINDS, "row counts", kind)
    (counts,) = rot.files("row counts")
    outcome = rot.try_damage("row counts", "a flipped bit", counts, random.Random(0))
    assert outcome == "the reader returns different bits without a finding"


def test_table_counts_failures(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    for end in ("old", "new", "old"):
        table.add("save: EIO", end, True, "")
    with table.failing("save: EIO", "call 3"):
        raise KeyError("neither")
    assert "FAILED save: EIO, call 3: KeyError: 'neither'" in capsys.readouterr().err
    assert "| save: EIO | 4 | 3 | 1 | 1 new, 2 old |\n| sum | 4 | 3 | 1 | |" in as_markdown(table.rows)


def test_slices_resume_and_cover_every_number_once() -> None:
    slices = [list(Share(part, 3).take(range(20))) for part in (1, 2, 3)]
    assert sorted(itertools.chain(*slices)) == list(range(20)) and all(slices)
    stopped = Share(2, 3)
    numbers = stopped.take(range(20))
    begun = [next(numbers), next(numbers), next(numbers)]
    numbers.close()  # during the third, which is not finished
    assert stopped.done == 2
    assert begun[:2] + list(Share(2, 3, done=stopped.done).take(range(20))) == slices[1]
    assert not list(Share(until=0).take(range(20)))


def test_four_of_five_damages_flip_a_bit_of_every_file() -> None:
    kinds = [name for name, kind in bit_rot.KINDS.items() for _ in range(kind.share)]
    damages = [bit_rot.draw_damage(number, kinds, 0)[:3] for number in range(12_500)]
    flips = [(kind, turn) for kind, damage, turn in damages if damage == bit_rot.FLIP]
    assert len(flips) == len({*flips}) == 10_000
    others = {(kind, damage) for kind, damage, _ in damages if damage != bit_rot.FLIP}
    assert len(others) == len(bit_rot.KINDS) * (len(bit_rot.DAMAGES) - 1)
