"""Plant one defect at a time in a copy of the tree: each must make one of its tests fail that passes without it."""

from __future__ import annotations

import functools
import itertools
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

from outcomes import Share, Table, require_known
from sabotages import SABOTAGES, Sabotage

REPOSITORY = Path(__file__).resolve().parents[2]
CAUGHT = "a test fails"
_TREE = ("bertjax", "configs", "launch", "tests", "README.md", "pyproject.toml", "setup.cfg")
_MOST_SECONDS = 900  # of the tests of one sabotage
_MOST_BYTES = 16 << 30
_FAILED, _PASSED = 1, 0  # exit codes of pytest; with any other code no test ran
TIERS = {"unit": ("--unit",), "run": (), "long": ("--long",)}


def try_sabotages(table: Table, folder: Path, tries: int | None, share: Share, names: Collection[str] = ()) -> None:
    """Plant every sabotage of all or the named files once, or the first `tries`; adds a row for each package folder.

    A trial fails if none of its tests fails, or if they already fail or are skipped without the sabotage. Raises
    ValueError for an unknown file.
    """
    require_known("files with sabotages", names, dict.fromkeys(one.file for one in SABOTAGES))
    tests = Tests(folder / "tree")
    chosen = [one for one in SABOTAGES if one.file in names or not names]
    for number in share.take(itertools.islice(range(len(chosen)), tries)):
        one, begun = chosen[number], time.monotonic()
        room, where = one.file.partition("/")[0], f"{number + 1}, {one.file}: {one.new.strip()[:70]!r}"
        with table.failing(room, where):
            outcome = tests.plant(one)
            table.add(room, outcome, outcome == CAUGHT, where)
            print(f"{outcome:14} {time.monotonic() - begun:5.0f} s  {where}", flush=True)


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))


class Tests:
    """Runs tests in a copy of the tree."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        copy.mkdir()
        for name in _TREE:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)

    def plant(self, one: Sabotage) -> str:
        """Run the tests of a planted sabotage; returns CAUGHT, or why it was not caught."""
        if reason := self.unusable(one.tests, one.tier):
            return reason
        path = self._copy / "bertjax" / one.file
        original = path.read_text(encoding="utf-8")
        assert original.count(one.old) == 1, "the code has changed: rewrite the sabotage"
        path.write_text(original.replace(one.old, one.new), encoding="utf-8")
        try:
            code, output = self._run(one.tests, one.tier)
        except subprocess.TimeoutExpired:
            return "its tests do not end"
        finally:
            path.write_text(original, encoding="utf-8")
        if code == _PASSED:
            return "survived"
        return CAUGHT if code == _FAILED else f"no test ran: {output[-1000:]}"

    @functools.cache  # noqa: B019 (as long as the campaign)
    def unusable(self, tests: str, tier: str) -> str:
        """Why these tests prove nothing: they fail without a sabotage, or are skipped; "" if they pass."""
        try:
            code, output = self._run(tests, tier)
        except subprocess.TimeoutExpired:
            return "not counted: its tests do not end without it"
        if code != _PASSED:
            return f"not counted: its tests fail without it: {output[-1000:]}"
        return "" if re.search(r"\b[1-9]\d* passed", output) else "not counted: its tests are skipped here"

    def _run(self, tests: str, tier: str) -> tuple[int, str]:
        names = [str(self._copy / "tests" / name) for name in tests.split()]
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *TIERS[tier], *names]
        environment = os.environ | {"PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command,
            cwd=self._copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            preexec_fn=_limit_memory,  # a sabotage must not use up the machine's memory
        )
        return done.returncode, done.stdout + done.stderr
