"""What a race keeps: in its folder the work of one commit, and in a file of the repository what came of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertjax.storage.files import replace_text


def require_same_commit(folder: Path) -> None:
    """Record the commit in a new folder. Raises SystemExit where another commit has measured in it."""
    commit, path = _commit(), folder / "commit"
    if path.exists() and path.read_text().strip() != commit:
        raise SystemExit(f"{folder} is of commit {path.read_text().strip()}; remove it or give another --folder")
    replace_text(path, commit)


class Kept:
    """What came of a race that is run in parts: its terms, the speeds of all, and the outcome of each run.

    The file is JSON, made at the first change. Without a path nothing is kept. Raises SystemExit for the file of a race
    on other `terms` (the minutes, the size).
    """

    def __init__(self, path: Path | None, terms: Mapping[str, Any]) -> None:
        self._path, self._terms = path, dict(terms)
        new: dict[str, Any] = {"terms": self._terms, "speeds": {}, "runs": {}}
        content = json.loads(path.read_text()) if path and path.exists() else new
        if (others := content["terms"]) != self._terms:
            raise SystemExit(f"{path} is of a race on {others}, and this one is on {self._terms}; give another --kept")
        self.speeds: dict[str, Any] = content["speeds"]
        self._timed: dict[str, Any] = content.get("timed", {})
        self.runs: dict[str, dict[str, Any]] = content["runs"]

    def require_speeds_of(self, names: Iterable[str]) -> None:
        """Raise SystemExit if others than these have known speeds: an hour of one day is not that of another."""
        if self.speeds and (new := {*names} - self.speeds.keys()):
            raise SystemExit(
                f"{self._path} has speeds of {', '.join(self.speeds)} and not of {', '.join(sorted(new))}: entrants "
                "are compared by the speeds of one sitting; measure all of them with another --kept"
            )

    def add_speeds(self, speeds: Mapping[str, Any]) -> None:
        """Keep how fast the entrants are, with commit and date; the known stay, because runs were planned by them."""
        self._timed = dict.fromkeys(speeds, _now()) | self._timed
        self.speeds = {**speeds, **self.speeds}
        self._write()

    def has(self, name: str, figures: Iterable[str]) -> bool:
        """Whether these figures of a run are known."""
        return {*figures} <= self.runs.get(name, {}).keys()

    def add_run(self, name: str, outcome: Mapping[str, Any]) -> None:
        """Keep a run's outcome with commit and date; what is known of it stays."""
        self.runs[name] = {**outcome, **_now(), **self.runs.get(name, {})}
        self._write()

    def _write(self) -> None:
        if self._path:
            runs = dict(sorted(self.runs.items()))
            content = {"terms": self._terms, "speeds": self.speeds, "timed": self._timed, "runs": runs}
            replace_text(self._path, json.dumps(content, indent=1) + "\n")


def commit_of(repository: Path, *not_counted: str) -> str:
    """The commit of a repository, with `-dirty` where tracked files differ from it, except those not counted."""
    git = ["git", "-C", str(repository)]
    words = ["status", "--porcelain", "--untracked-files=no", "--", ".", *(f":!{path}" for path in not_counted)]
    head, changed = (
        subprocess.run([*git, *one], capture_output=True, text=True).stdout.strip()
        for one in (["rev-parse", "--short", "HEAD"], words)
    )
    return head + "-dirty" * bool(changed)


def _now() -> dict[str, str]:
    return {"commit": _commit(), "date": datetime.now(UTC).date().isoformat()}


def _commit() -> str:
    return commit_of(Path(__file__).parents[2], "README.md", "tests/benchmarks/*.json")  # which races are kept in
