"""Fail every system call of an action once; afterwards the old or the new state must be intact."""

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

FAULTS = {"EIO": 1, "ENOSPC": 2, "disk full from there on": 3, "process death": 4, "death halfway through": 5}
_NEVER = 0
_COMPILER = shutil.which("cc") or shutil.which("gcc")
MISSING = "" if _COMPILER and sys.platform == "linux" else "needs Linux and a C compiler"


def build_library(folder: Path) -> Path:
    """Compile the library that makes calls fail."""
    library = folder / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run([_COMPILER, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


class Server:
    """Context manager for the process that forks the trial processes; restarted if it dies."""

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
        assert process.stdout.readline() == "ready\n", "the crash server does not start"
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
        """Run the action; returns its exit `code` (1 for an error with a message), `counted` calls and `message`.

        Raises RuntimeError if the server dies.
        """
        self._process = self._process or self._start()
        job = {"subject": subject, "folder": str(folder), "call": call, "how": how}
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            self._process.kill()
            code, self._process = self._process.wait(), None
            raise RuntimeError(f"the crash server died with exit code {code}: {error}") from error


class Trials:
    """The crash points of one subject."""

    def __init__(self, name: str, server: Server, folder: Path) -> None:
        self.name, self._subject, self._server = name, SUBJECTS[name], server
        self._old, self._work = folder / f"{name}-old", folder / name
        # Created in the folder where it is used, because some states contain paths.
        self._work.mkdir(parents=True)
        self._subject.begin(self._work)
        shutil.copytree(self._work, self._old, symlinks=True)
        assert self._subject.state(self._work) == OLD
        undisturbed = server.act(name, self._work, -1, _NEVER)
        assert undisturbed["code"] == 0 and self._subject.state(self._work) == NEW, undisturbed
        self.calls: int = undisturbed["counted"]
        assert self.calls, "the library did not count any call"

    def try_call(self, call: int, how: int) -> str:
        """Fail a call and run the action again. Returns OLD or NEW, the state before the rerun, or an error."""
        shutil.rmtree(self._work)
        shutil.copytree(self._old, self._work, symlinks=True)
        outcome = self._server.act(self.name, self._work, call, how)
        state = self._subject.state(self._work)
        if state not in (OLD, NEW):
            return f"neither old nor new: {state}"
        if outcome["code"] not in (0, 1, -9):
            return f"ended with {outcome['code']}: {outcome['message']}"
        if outcome["code"] == 0 and state == OLD:
            return "no error, but the new state is missing"
        try:
            self._subject.act(self._work)
        except (OSError, ValueError) as error:
            return f"{state}, and the rerun fails: {error}"
        if (rerun_state := self._subject.state(self._work)) != NEW:
            return f"{state}, and {rerun_state} after the rerun"
        leftovers = self._subject.leftovers(self._work)
        return f"{state}, and {leftovers} were left behind" if leftovers else state


def point_number(name: str, how: str, call: int) -> int:
    """The number of a crash point: random, but independent of the other points."""
    return int.from_bytes(hashlib.sha256(f"{name} {how} {call}".encode()).digest()[:8], "big")


def try_crash_points(table: Table, folder: Path, tries: int | None, share: Share, names: Collection[str] = ()) -> None:
    """Try every crash point of all or the named subjects once, in random order, or the first `tries`.

    Adds a row for each subject and fault. Raises ValueError for an unknown name.
    """
    require_known("subjects of crash points", names, SUBJECTS)
    with Server(build_library(folder)) as server:
        subjects = {}
        for name in names or SUBJECTS:
            with table.failing(f"{name}: undisturbed", "its calls are not tried"):
                subjects[name] = Trials(name, server, folder)
        points = {
            point_number(name, how, call): (name, how, call)
            for name, one in subjects.items()
            for how in FAULTS
            for call in range(one.calls)
        }
        for number in share.take(itertools.islice(sorted(points), tries)):
            name, how, call = points[number]
            row = f"{name}, {subjects[name].calls} calls: {how}"
            with table.failing(row, f"call {call}"):
                outcome = subjects[name].try_call(call, FAULTS[how])
                table.add(row, outcome, outcome in (OLD, NEW), f"call {call}")
