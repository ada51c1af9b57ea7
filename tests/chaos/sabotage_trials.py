"""Plants defects one at a time: each must turn one of its tests red, in a copy of the tree where they are green."""

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
FOUND = "a test fails"
_TREE = ("bertjax", "configs", "launch", "tests", "README.md", "pyproject.toml", "setup.cfg")
_MOST_SECONDS = 900  # of the tests of one sabotage
_MOST_BYTES = 16 << 30
_FAILED, _PASSED = 1, 0  # exit codes of pytest; others say that no test ran
TIERS = {"unit": ("--unit",), "run": (), "long": ("--long",)}


def try_sabotages(table: Table, folder: Path, tries: int | None, share: Share, names: Collection[str] = ()) -> None:
    """Every sabotage (of these files) once, or only so many; a row for each room of the code.

    It fails if no test of its own turns red, or if these tests are red or skipped without it, so that nothing is shown.
    Raises ValueError for an unknown file.
    """
    require_known("files with sabotages", names, dict.fromkeys(one.file for one in SABOTAGES))
    tests = Tests(folder / "tree")
    chosen = [one for one in SABOTAGES if one.file in names or not names]
    for number in share.of(itertools.islice(range(len(chosen)), tries)):
        one, begun = chosen[number], time.monotonic()
        room, where = one.file.partition("/")[0], f"{number + 1}, {one.file}: {one.new.strip()[:70]!r}"
        with table.failing(room, where):
            found = tests.planted(one)
            table.add(room, found, found == FOUND, where)
            print(f"{found:14} {time.monotonic() - begun:5.0f} s  {where}", flush=True)


def _bound() -> None:
    """A sabotage must not take the machine's memory with it."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_BYTES, _MOST_BYTES))


class Tests:
    """Tests in a copy of the tree."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy
        copy.mkdir()
        for name in _TREE:
            source = REPOSITORY / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)

    def planted(self, one: Sabotage) -> str:
        """What its tests say of a sabotage: FOUND, or what is wrong."""
        if wrong := self.unplanted(one.tests, one.tier):
            return wrong
        path = self._copy / "bertjax" / one.file
        whole = path.read_text(encoding="utf-8")
        assert whole.count(one.old) == 1, "the code has changed: write the sabotage anew"
        path.write_text(whole.replace(one.old, one.new), encoding="utf-8")
        try:
            code, said = self._run(one.tests, one.tier)
        except subprocess.TimeoutExpired:
            return "its tests do not end"
        finally:
            path.write_text(whole, encoding="utf-8")
        if code == _PASSED:
            return "survived"
        return FOUND if code == _FAILED else f"no test ran: {said[-1000:]}"

    @functools.cache  # noqa: B019 (as long as the campaign)
    def unplanted(self, tests: str, tier: str) -> str:
        """Why these tests could show nothing: red without a sabotage, or skipped; else ""."""
        try:
            code, said = self._run(tests, tier)
        except subprocess.TimeoutExpired:
            return "not counted: its tests do not end without it"
        if code != _PASSED:
            return f"not counted: its tests are red without it: {said[-1000:]}"
        return "" if re.search(r"\b[1-9]\d* passed", said) else "not counted: its tests are skipped here"

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
            preexec_fn=_bound,
        )
        return done.returncode, done.stdout + done.stderr
