"""The record of a race: its folder holds the work of one commit, and a file in the repository its outcomes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertjax.storage.files import replace_text


def require_same_commit(folder: Path) -> None:
    """Record the commit in a new folder. Raises SystemExit if another commit has measured in it."""
    commit, path = _commit(), folder / "commit"
    if path.exists() and path.read_text().strip() != commit:
        raise SystemExit(
            f"{folder} holds results of commit {path.read_text().strip()}; remove it or give another --folder"
        )
    replace_text(path, commit)


class RaceRecord:
    """The results of a race that runs in parts: its terms, the entrants' speeds, and the outcome of each run.

    The JSON file is written at the first change; without a path nothing is saved. Raises SystemExit if the file records
    a race with other `terms` (minutes, size).
    """

    def __init__(self, path: Path | None, terms: Mapping[str, Any]) -> None:
        self._path, self._terms = path, dict(terms)
        new: dict[str, Any] = {"terms": self._terms, "speeds": {}, "runs": {}}
        content = json.loads(path.read_text()) if path and path.exists() else new
        if (others := content["terms"]) != self._terms:
            raise SystemExit(f"{path} records a race with {others}, not {self._terms}; give another --record")
        self.speeds: dict[str, Any] = content["speeds"]
        self._timed: dict[str, Any] = content.get("timed", {})
        self.runs: dict[str, dict[str, Any]] = content["runs"]

    def require_speeds(self, names: Iterable[str]) -> None:
        """Raise SystemExit if speeds are recorded, but not for all names: a machine's speed varies between days."""
        if self.speeds and (new := {*names} - self.speeds.keys()):
            raise SystemExit(
                f"{self._path} has speeds of {', '.join(self.speeds)} but not of {', '.join(sorted(new))}: entrants "
                "must be timed in one sitting; measure all of them with another --record"
            )

    def add_speeds(self, speeds: Mapping[str, Any]) -> None:
        """Record speeds with commit and date. Known speeds stay, because runs were planned by them."""
        self._timed = dict.fromkeys(speeds, _now()) | self._timed
        self.speeds = {**speeds, **self.speeds}
        self._write()

    def has(self, name: str, figures: Iterable[str]) -> bool:
        """Whether the record has these figures of a run."""
        return {*figures} <= self.runs.get(name, {}).keys()

    def add_run(self, name: str, outcome: Mapping[str, Any]) -> None:
        """Record a run's outcome with commit and date. Known figures stay."""
        self.runs[name] = {**outcome, **_now(), **self.runs.get(name, {})}
        self._write()

    def _write(self) -> None:
        if self._path:
            runs = dict(sorted(self.runs.items()))
            content = {"terms": self._terms, "speeds": self.speeds, "timed": self._timed, "runs": runs}
            replace_text(self._path, json.dumps(content, indent=1) + "\n")


def describe_commit(repository: Path, *ignored: str) -> str:
    """The commit of a repository, with `-dirty` if tracked files other than the ignored ones differ from it."""
    git = ["git", "-C", str(repository)]
    words = ["status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in ignored)]
    head, changed = (
        subprocess.run([*git, *one], capture_output=True, text=True).stdout.strip()
        for one in (["rev-parse", "--short", "HEAD"], words)
    )
    return head + "-dirty" * bool(changed)


def _now() -> dict[str, str]:
    return {"commit": _commit(), "date": datetime.now(UTC).date().isoformat()}


def _commit() -> str:
    return describe_commit(Path(__file__).parents[2], "README.md", "tests/benchmarks/*.json")  # race records
