"""A run whose directory is a URL: who owns it, and what each of its processes keeps on its own machine meanwhile.

Object storage has no locks, so that the rule is another one than on a disk: the job that started last owns the run, and
an earlier one stops at its next save. That suits a job that is restarted after its machine was taken away: it waits for
nobody's lease to run out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from bertjax.storage.locks import is_ours
from bertjax.storage.remote import DEFAULT_CACHE, Place, RemotePath

OWNER_FILE = "owner.json"  # within the run's directory


class LostClaim(RuntimeError):
    """Another job has begun to train in this run's directory."""

    exit_code = 2  # what no launcher starts again: two jobs would take the run from each other for ever


class Claim:
    """The word of process 0 that a run is its job's: an object with a number drawn at the start.

    It is read again before anything of the run is written. Between that and the write another job may start: then both
    write this one thing, and only the younger any other.
    """

    def __init__(self, run: RemotePath) -> None:
        self.run, self._file = run, run / OWNER_FILE
        self._owner = {"job": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "since": _now()}

    def take(self) -> str | None:
        """Make the run this job's; a line to print if the one before did not leave in order."""
        before = self._found()
        self._write(ended=None)
        if before is None or before.get("ended"):
            return None
        return (
            f"{self.run}: the job of process {before.get('process')} on {before.get('host')}, since "
            f"{before.get('since')}, did not end in order; if it still runs, it stops at its next save"
        )

    def require(self) -> None:
        """Raise LostClaim if another job has taken the run, or somebody has removed it."""
        found = self._found()
        if found is None:
            raise LostClaim(
                f"{self._file}, which this job wrote when it began, is gone; start it again if it is to go on"
            )
        if found.get("job") != self._owner["job"]:
            raise LostClaim(
                f"{self.run}: another job trains there now (process {found.get('process')} on {found.get('host')}, "
                f"since {found.get('since')}, as {self._file} says); this one stops and writes nothing more. Stop the "
                "other one, or use another --run-dir"
            )

    def leave(self) -> None:
        """Say that the job is over, if the run is still its own."""
        with contextlib.suppress(LostClaim):
            self.require()
            self._write(ended=_now())

    def _found(self) -> dict | None:
        try:
            return json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            return {}  # not ours in any case

    def _write(self, ended: str | None) -> None:
        self._file.write_bytes(json.dumps(self._owner | {"ended": ended}).encode())


def refuse_a_second(lock: IO[str], run: Place) -> None:
    """Lock an open file until this process ends. Raises ValueError while another of this machine trains in `run`."""
    if not is_ours(lock):
        raise ValueError(f"run_dir={run}: another process is training there; wait for it, or use another --run-dir")


@dataclass(frozen=True)
class Desk:
    """A process's folder on its own machine, empty when it starts, where nothing must last; and process 0's claim."""

    folder: Path
    claim: Claim | None


@contextlib.contextmanager
def desk_for(run: RemotePath, cache_dir: str, process: int) -> Iterator[Desk]:
    """The desk of one process of a run, below `data.cache_dir`; gone at the end.

    The run is not claimed yet. Raises ValueError while the same process of the same run is at work on this machine.
    """
    cache = Path(cache_dir or DEFAULT_CACHE)
    folder = cache / f"run-{hashlib.sha256(run.url.rstrip('/').encode()).hexdigest()[:12]}-{process}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        refuse_a_second(lock, run)
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
        folder.mkdir()
        claim = Claim(run) if process == 0 else None
        try:
            yield Desk(folder, claim)
            if claim:
                claim.leave()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
