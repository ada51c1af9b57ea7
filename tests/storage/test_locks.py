"""File locks: exclusive and shared ones, and a warning on filesystems without locks."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from bertjax.convert.folder import written_whole
from bertjax.run.run_directory import own_directory
from bertjax.storage.atomic_directories import acquire, exclusive_lock, shared_lock, try_acquire

pytestmark = pytest.mark.run

HOLDING = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, int(sys.argv[2]))
print("held", flush=True)
time.sleep(float(sys.argv[3]))
open(sys.argv[1] + ".ended", "w").close()
"""


@contextmanager
def held_elsewhere(path: Path, operation: int, seconds: float = 60) -> Iterator[subprocess.Popen[str]]:
    """Hold the lock in another process for `seconds`, or until it is killed."""
    command = [sys.executable, "-c", HOLDING, str(path), str(operation), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.run
def test_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_elsewhere(path, fcntl.LOCK_EX) as other, path.open("w") as file:
        assert not try_acquire(file)
        other.kill()
        other.wait()
        assert try_acquire(file)
        with path.open("w") as again:
            assert not try_acquire(again)


@pytest.mark.run
@pytest.mark.parametrize(("theirs", "shared", "waits"), [(fcntl.LOCK_EX, True, True), (fcntl.LOCK_SH, False, True),
                                                         (fcntl.LOCK_SH, True, False)])  # fmt: skip
def test_shared_locks_coexist_and_exclusive_ones_wait(tmp_path: Path, theirs: int, shared: bool, waits: bool) -> None:
    with held_elsewhere(tmp_path / "lock", theirs, seconds=1 if waits else 60), (tmp_path / "lock").open("w") as file:
        acquire(file, shared)
        assert (tmp_path / "lock.ended").exists() == waits


HOLDERS: list[Callable[[Path], AbstractContextManager[object]]] = [
    lambda path: written_whole(path / "export", "last"),
    own_directory,
    exclusive_lock,
    shared_lock,
]


@pytest.mark.parametrize("holder", HOLDERS, ids=["export", "run", "alone", "beside"])
def test_filesystem_without_locks_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Callable[[Path], AbstractContextManager[object]]
) -> None:
    def fails(code: int) -> Callable[..., None]:
        def flock(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        return flock

    monkeypatch.setattr(fcntl, "flock", fails(errno.EOPNOTSUPP))
    message = r"lock: this filesystem has no locks \(Operation not supported\); let only one process write there"
    with pytest.warns(UserWarning, match=message), holder(tmp_path):
        pass
    monkeypatch.setattr(fcntl, "flock", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"), holder(tmp_path):
        pass
