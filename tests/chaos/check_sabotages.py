"""Plants defects one at a time, and lists those that no test sees: `python tests/chaos/check_sabotages.py [FILE ...]`.

Each sabotage is applied to a temporary copy of the tree, in which its tests run; they must fail. Exits with 1 if a
sabotage survives, or its tests cannot run.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from sabotages import SABOTAGES, Sabotage

REPOSITORY = Path(__file__).resolve().parents[2]
_TREE = ("bertjax", "configs", "launch", "tests", "README.md", "pyproject.toml", "setup.cfg")
_MOST_SECONDS = 900  # of the tests of one sabotage
_MOST_BYTES = 16 << 30
_FAILED, _PASSED = 1, 0  # exit codes of pytest; others say that no test ran


def main(words: Sequence[str] | None = None) -> int:
    """Run the sabotages of the named files, by default of all; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="of bertjax/, such as training/step.py; default: all")
    asked = parser.parse_args(words).files
    if unknown := {*asked} - {one.file for one in SABOTAGES}:
        parser.error(f"no sabotage of {', '.join(sorted(unknown))}")
    chosen = [one for one in SABOTAGES if not asked or one.file in asked]
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        copy.mkdir()
        for name in _TREE:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        for number, one in enumerate(chosen, 1):
            begun = time.monotonic()
            outcomes.append(outcome := _outcome(one, copy))
            seconds = time.monotonic() - begun
            print(f"{number:3} {outcome:8} {seconds:5.0f} s  {one.file}: {one.new.strip()[:70]!r}", flush=True)
    counts = {kind: outcomes.count(kind) for kind in ("killed", "survived", "endless", "no tests")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return int(counts["killed"] != len(chosen))


def _bound() -> None:
    """A sabotage must not take the machine's memory with it."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))


def _outcome(one: Sabotage, copy: Path) -> str:
    """`killed` if a test fails, `survived` if all pass, `endless` if they do not end, `no tests` if none could run."""
    path = copy / "bertjax" / one.file
    whole = path.read_text(encoding="utf-8")
    assert whole.count(one.old) == 1, one
    path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
    tests = [str(copy / "tests" / name) for name in one.tests.split()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, preexec_fn=_bound
        )
    except subprocess.TimeoutExpired:
        return "endless"
    finally:
        path.write_text(whole, encoding="utf-8")
    if done.returncode not in (_FAILED, _PASSED):
        print(done.stdout[-2000:], done.stderr[-2000:])
        return "no tests"
    return "killed" if done.returncode == _FAILED else "survived"


if __name__ == "__main__":
    sys.exit(main())
