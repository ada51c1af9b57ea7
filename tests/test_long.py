"""tests/long.py runs every check and long test, and prints their outcomes."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("long_pieces", REPOSITORY / "tests" / "long.py")
long = importlib.util.module_from_spec(_SPEC)
sys.modules["long_pieces"] = long  # needed by dataclasses
_SPEC.loader.exec_module(long)

FINE = long.Piece("fine", ("-c", "print('done')"))
WRONG = long.Piece("wrong", ("-c", "raise SystemExit(3)"))
ABSENT = long.Piece("absent", ("-c", "raise SystemExit(4)"), long.needs_modules("no_such_module"))


def test_every_check_is_a_piece() -> None:
    scripts = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "tests").rglob("check_*.py")}
    assert scripts and {piece.command[0] for piece in long.PIECES} == scripts | {"-m"}
    assert len({piece.name for piece in long.PIECES}) == len(long.PIECES)


def test_every_room_with_long_tests_is_a_piece() -> None:
    marked = {
        path.parent.name
        for path in (REPOSITORY / "tests").glob("*/test_*.py")
        if re.search(r"mark\.long|long_unless|members\(", path.read_text(encoding="utf-8"))
    }
    assert marked | {"package"} == {*long.ROOMS}
    parts = [f"{room}/{file}" for room, files in long.PARTS.items() for part in files.values() for file in part]
    assert all((REPOSITORY / "tests" / file).exists() for file in parts) and len(parts) == len({*parts})


def test_main_prints_and_records_every_outcome(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert long.main([], (FINE, WRONG, ABSENT), tmp_path, tmp_path / "last.json") == 1
    rows = capsys.readouterr().out.partition("outcome\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == ["fine", "wrong", "absent", "sum", "logs:"]
    assert rows[0].split()[2] == "passed" and rows[1].split()[2] == "failed:"
    assert f"exit code 3, see {tmp_path / 'wrong.log'}" in rows[1]
    assert "skipped: cannot import no_such_module" in rows[2]
    assert (tmp_path / "fine.log").read_text() == "done\n"
    last = json.loads((tmp_path / "last.json").read_text())
    assert {name: last[name]["verdict"] for name in last} == {"fine": "passed", "wrong": "failed", "absent": "not run"}
    assert last["wrong"]["remark"] == ""  # the path of the log is left out
    assert long.main(["fine"], (FINE,), tmp_path, tmp_path / "last.json") == 0
    assert set(json.loads((tmp_path / "last.json").read_text())) == {"fine", "wrong", "absent"}


def test_main_runs_only_named_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert long.main(["fine"], (FINE, WRONG), tmp_path, tmp_path / "last.json") == 0
    assert not (tmp_path / "wrong.log").exists()
    with pytest.raises(SystemExit, match="2"):
        long.main(["fines"], (FINE, WRONG), tmp_path, tmp_path / "last.json")
    assert "unknown piece fines; choose from fine, wrong" in capsys.readouterr().err


def test_interruption_skips_the_remaining_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupt = long.Piece("stop", ("-c", "import os, signal; os.kill(os.getppid(), signal.SIGINT); input()"))
    code = (
        f"import signal, sys, runpy; from pathlib import Path; sys.argv = ['long.py']\n"
        f"signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # background jobs of a shell ignore it
        f"long = runpy.run_path({str(REPOSITORY / 'tests' / 'long.py')!r})\n"
        f"pieces = [long['Piece']('stop', {interrupt.command!r}), long['Piece']('rest', {FINE.command!r})]\n"
        f"raise SystemExit(long['main']([], pieces, Path({str(tmp_path)!r}), Path({str(tmp_path / 'last.json')!r})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 130, done.stderr
    assert [row.split()[2:] for row in done.stdout.splitlines() if row.startswith(("stop ", "rest "))] == [
        ["interrupted"],
        ["not", "run"],
    ]


def test_remark_counts_the_tests_of_pytest(tmp_path: Path) -> None:
    tests = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n@pytest.mark.skip\ndef test_c(): pass\n"
    (tmp_path / "test_some.py").write_text(tests)
    words = ("-m", "pytest", "-p", "no:cacheprovider", "--junitxml={logs}/some.xml", f"--rootdir={tmp_path}")
    outcome = long.run_piece(long.Piece("some", (*words, "-c", "/dev/null", str(tmp_path))), tmp_path)
    assert outcome.verdict == "failed" and outcome.remark.startswith("1 passed, 1 failed, 1 skipped; exit code 1")
