"""Every system call of an action fails once, and afterwards the old state or the new one is there."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from crash_subjects import NEW, OLD, SUBJECTS
from outcomes import Share, Table, require_known

HOWS = {"EIO": 1, "ENOSPC": 2, "disk full from there on": 3, "process death": 4, "death halfway through": 5}
_NEVER = 0
_COMPILER = shutil.which("cc") or shutil.which("gcc")
MISSING = "" if _COMPILER and sys.platform == "linux" else "needs Linux and a C compiler"


def built(folder: Path) -> Path:
    """The library that makes calls fail."""
    library = folder / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run([_COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Server:
    """The process that forks those whose calls fail, started again if it dies; a context manager."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._log = library.with_suffix(".log").open("ab")  # Orbax describes each failure at length
        self._process: subprocess.Popen[str] | None = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("crash_server.py")), str(self._library)]
        process = subprocess.Popen(
            command,
            env=os.environ | {"LD_PRELOAD": str(self._library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert process.stdout.readline() == "ready\n", "the server of crash points does not start"
        return process

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.stdin.close()
            try:
                self._process.wait(120)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()

    def act(self, subject: str, folder: Path, call: int, how: int) -> dict:
        """What became of the action: `code` (0, 1 for an error with a message), `counted` calls, and what it `said`.

        Raises RuntimeError if the server dies of it.
        """
        self._process = self._process or self._start()
        job = {"subject": subject, "folder": str(folder), "call": call, "how": how}
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            self._process.kill()
            died, self._process = self._process.wait(), None
            raise RuntimeError(f"the server of crash points died with {died}: {error}") from error


class Trials:
    """The crash points of one subject."""

    def __init__(self, name: str, server: Server, folder: Path) -> None:
        self.name, self._subject, self._server = name, SUBJECTS[name], server
        self._old, self._work = folder / f"{name}-old", folder / name
        # Made where it is used, for paths are a part of some states.
        self._work.mkdir(parents=True)
        self._subject.begin(self._work)
        shutil.copytree(self._work, self._old, symlinks=True)
        assert self._subject.found(self._work) == OLD
        whole = server.act(name, self._work, -1, _NEVER)
        assert whole["code"] == 0 and self._subject.found(self._work) == NEW, whole
        self.calls: int = whole["counted"]
        assert self.calls, "the library counts no call"

    def tried(self, call: int, how: int) -> str:
        """OLD or NEW, the state after that call failed and before the action ran again; or what is wrong."""
        shutil.rmtree(self._work)
        shutil.copytree(self._old, self._work, symlinks=True)
        done = self._server.act(self.name, self._work, call, how)
        found = self._subject.found(self._work)
        if found not in (OLD, NEW):
            return f"neither old nor new: {found}"
        if done["code"] not in (0, 1, -9):
            return f"ended with {done['code']}: {done['said']}"
        if done["code"] == 0 and found == OLD:
            return "it said nothing, and the new state is not there"
        try:
            self._subject.act(self._work)
        except (OSError, ValueError) as error:
            return f"{found}, and cannot be done again: {error}"
        if (again := self._subject.found(self._work)) != NEW:
            return f"{found}, and done again it is {again}"
        left = self._subject.left(self._work)
        return f"{found}, and {left} stayed behind" if left else found


def number_of(name: str, how: str, call: int) -> int:
    """The number of a point: the same whatever other points there are, and in a random order."""
    return int.from_bytes(hashlib.sha256(f"{name} {how} {call}".encode()).digest()[:8], "big")


def try_crash_points(table: Table, folder: Path, tries: int | None, share: Share, names: Collection[str] = ()) -> None:
    """Every crash point of every subject (of these names) once, in random order, or only so many.

    A row for each subject and how its calls fail. Raises ValueError for an unknown name.
    """
    require_known("subjects of crash points", names, SUBJECTS)
    with Server(built(folder)) as server:
        subjects = {}
        for name in names or SUBJECTS:
            with table.failing(f"{name}: undisturbed", "its calls are not tried"):
                subjects[name] = Trials(name, server, folder)
        points = {
            number_of(name, how, call): (name, how, call)
            for name, one in subjects.items()
            for how in HOWS
            for call in range(one.calls)
        }
        for number in share.of(itertools.islice(sorted(points), tries)):
            name, how, call = points[number]
            row = f"{name}, {subjects[name].calls} calls: {how}"
            with table.failing(row, f"call {call}"):
                found = subjects[name].tried(call, HOWS[how])
                table.add(row, found, found in (OLD, NEW), f"call {call}")
