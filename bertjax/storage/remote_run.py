"""Runs whose directory is a URL: ownership by one job, and a staging directory for each process.

Object storage has no locks. The job that started last owns the run, and an earlier job stops at its next save, so that
a job restarted after preemption need not wait for a lease to expire.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from bertjax.storage.atomic_directories import try_acquire
from bertjax.storage.remote import DEFAULT_CACHE, AnyPath, RemotePath

OWNER_FILE = "owner.json"  # in the run's directory


class LostClaim(RuntimeError):
    """Another job trains in this run's directory."""

    exit_code = 2  # launchers do not restart after this, or two jobs would take the run from each other forever


class Claim:
    """One job's ownership of a run: an object that process 0 writes, with an id drawn when the job starts.

    The object is read again before each write to the run. If another job starts between that read and the write, both
    jobs do this one write, and only the later job writes after it.
    """

    def __init__(self, run: RemotePath) -> None:
        self.run, self._file = run, run / OWNER_FILE
        self._owner = {"job": uuid.uuid4().hex, "host": socket.gethostname(), "process": os.getpid(), "since": _now()}

    def take(self) -> str | None:
        """Make this job the owner. Returns a line to print if the previous job did not end cleanly, else None."""
        before = self._read_owner()
        self._write(ended=None)
        if before is None or before.get("ended"):
            return None
        return (
            f"{self.run}: the job of process {before.get('process')} on {before.get('host')}, since "
            f"{before.get('since')}, did not end cleanly; if it still runs, it stops at its next save"
        )

    def require(self) -> None:
        """Raise LostClaim if another job owns the run, or the claim was removed."""
        owner = self._read_owner()
        if owner is None:
            raise LostClaim(
                f"{self._file}, which this job wrote when it started, was removed; start the job again to continue"
            )
        if owner.get("job") != self._owner["job"]:
            raise LostClaim(
                f"{self.run}: another job trains there now (process {owner.get('process')} on {owner.get('host')}, "
                f"since {owner.get('since')}; see {self._file}); this job stops and writes nothing more. Stop the "
                "other one, or use another --run-dir"
            )

    def leave(self) -> None:
        """Record that the job ended, if it still owns the run."""
        with contextlib.suppress(LostClaim):
            self.require()
            self._write(ended=_now())

    def _read_owner(self) -> dict | None:
        try:
            owner = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            return {}  # certainly not this job's
        return owner if isinstance(owner, dict) else {}

    def _write(self, ended: str | None) -> None:
        self._file.write_bytes(json.dumps(self._owner | {"ended": ended}).encode())


def refuse_a_second(lock: IO[str], run: AnyPath) -> None:
    """Lock an open file until this process ends. Raises ValueError if another process on this machine holds it."""
    if not try_acquire(lock):
        raise ValueError(f"run_dir={run}: another process is training there; wait for it, or use another --run-dir")


@dataclass(frozen=True)
class StagingDir:
    """The local directory in which a process of a remote run prepares its uploads."""

    folder: Path  # empty at the start, removed at the end
    claim: Claim | None  # of process 0


@contextlib.contextmanager
def staging_dir(run: RemotePath, cache_dir: str, process: int) -> Iterator[StagingDir]:
    """Make a process's staging directory for a run, under `data.cache_dir`, and remove it on exit.

    Does not claim the run. Raises ValueError if the same process of the same run is already running on this machine.
    """
    cache = Path(cache_dir or DEFAULT_CACHE)
    folder = cache / f"run-{hashlib.sha256(run.url.rstrip('/').encode()).hexdigest()[:12]}-{process}"
    cache.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        refuse_a_second(lock, run)
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
        folder.mkdir()
        claim = Claim(run) if process == 0 else None
        try:
            yield StagingDir(folder, claim)
            if claim:
                claim.leave()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


UPLOAD_SECONDS = 60.0  # between two background uploads, each of which sends whole objects


class Mirror:
    """Uploads the changed files of a directory under the same names."""

    def __init__(self, folder: Path, target: RemotePath, claim: Claim, seconds: float = UPLOAD_SECONDS) -> None:
        self._folder, self._target, self._claim, self._seconds = folder, target, claim, seconds
        self._sent: dict[Path, tuple[int, int]] = {}
        self._uploading = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last = time.monotonic()

    def publish(self) -> None:
        """Upload the changed files and wait. Raises LostClaim if another job owns the run."""
        with self._uploading:
            self._last = time.monotonic()
            states = {path: _state(path) for path in sorted(self._folder.rglob("*")) if path.is_file()}
            changed = [path for path, state in states.items() if self._sent.get(path) != state]
            if changed:
                self._claim.require()
                names = [path.relative_to(self._folder).as_posix() for path in changed]
                self._target.upload_all(self._folder, names)
                # A file written during the upload has another state by now, and is uploaded next time.
                self._sent |= {path: states[path] for path in changed}

    @property
    def is_due(self) -> bool:
        """Whether the last upload was long enough ago and none is running."""
        return not self._uploading.locked() and time.monotonic() - self._last >= self._seconds

    def publish_in_background(self) -> None:
        """Upload the changed files in the background."""
        self._thread = threading.Thread(target=self._try, name="upload of logs", daemon=True)
        self._thread.start()

    def _try(self) -> None:
        # The next `publish` retries what failed here, and raises if it fails again.
        with contextlib.suppress(OSError, LostClaim):
            self.publish()


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
