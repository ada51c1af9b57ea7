"""Directories under `data.root` that appear atomically, named after a fingerprint of their inputs."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from bertjax.storage.remote import AnyPath, RemotePath, is_remote

# Errors of a mount without locks: Lustre without `flock`, NFS without a lock server, some of FUSE.
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def acquire(file: IO[str], shared: bool = False) -> None:
    """Lock an open file, waiting if necessary: exclusively, or `shared` with other shared holders."""
    _flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_acquire(file: IO[str]) -> bool:
    """Lock an open file exclusively without waiting. Returns whether that succeeded."""
    try:
        _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock(file: IO[str], operation: int) -> None:
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warnings.warn(
            f"{file.name}: this filesystem has no locks ({error.strerror}); let only one process write there",
            stacklevel=3,
        )


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # fcntl.h, linux/fs.h of Linux
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_inputs(recorded: Any, inputs: str, directory: AnyPath) -> None:
    """Raise ValueError unless a directory records these inputs; its name has only their first digits."""
    if recorded != inputs:
        raise ValueError(f"{directory} was made from other inputs ({recorded}, needed {inputs}); delete it")


def is_complete(folder: AnyPath, last: str) -> bool:
    """Whether a directory is complete. A local one appears atomically, a remote one ends with the file `last`."""
    return (folder / last).is_file() if is_remote(folder) else folder.exists()


@contextlib.contextmanager
def removed_on_error(folder: AnyPath, bytes_needed: Callable[[], int]) -> Iterator[None]:
    """Remove a directory if filling it raises ValueError or fills the disk (see `explaining_full_disk`)."""
    with explaining_full_disk(folder, bytes_needed), removed_if_invalid(folder):
        try:
            yield
        except OSError as error:
            if error.errno in _DISK_FULL and isinstance(folder, Path):
                remove_tree(folder)
            raise


@contextlib.contextmanager
def removed_if_invalid(folder: AnyPath) -> Iterator[None]:
    """Remove a directory if its inputs raise ValueError; after other errors the work in it can continue."""
    try:
        yield
    except ValueError:
        remove_tree(folder)
        raise


@contextlib.contextmanager
def explaining_full_disk(folder: AnyPath, bytes_needed: Callable[[], int]) -> Iterator[None]:
    """Re-raise an OSError for a full disk with the bytes that a local `folder` needs and the free bytes."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL or not isinstance(folder, Path):
            raise
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"cannot write {folder} ({error.strerror}): about {bytes_needed() / 1e6:.1f} MB are needed there, but "
            f"only {free / 1e6:.1f} MB are free; make room, or set data.root to a larger disk",
        ) from error


def exclusive_lock(root: AnyPath, name: str = "") -> contextlib.AbstractContextManager[None]:
    """Hold the exclusive lock on `root`, or on the directory `name` that is made in it, waiting if necessary.

    A remote root has no locks: run one job at a time.
    """
    return _lock(root, name, shared=False)


def shared_lock(root: AnyPath, name: str = "") -> contextlib.AbstractContextManager[None]:
    """Hold the lock of `exclusive_lock` together with other shared holders, waiting for an exclusive one."""
    return _lock(root, name, shared=True)


@contextlib.contextmanager
def _lock(root: AnyPath, name: str, shared: bool) -> Iterator[None]:
    if not isinstance(root, Path):
        yield
        return
    root.mkdir(parents=True, exist_ok=True)
    # The file is never removed, because another process may be waiting for its lock.
    with open(root / f".lock{name and f'-{name}'}", "w") as lock:
        acquire(lock, shared)
        yield


def scratch_dir(folder: AnyPath, prefix: str = "") -> tempfile.TemporaryDirectory[str]:
    """Make a temporary directory for files to publish in `folder`: inside it, or local if `folder` is remote."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=None if is_remote(folder) else str(folder))


def publish(file: Path, folder: AnyPath) -> None:
    """Move a synced file into a directory atomically, replacing a file of the same name."""
    if isinstance(folder, RemotePath):
        (folder / file.name).upload(file)
    else:
        os.replace(file, folder / file.name)


def exchange(one: Path, other: Path) -> bool:
    """Swap two directories atomically. Returns False, with nothing changed, if that is unsupported.

    Linux supports it (renameat2(2), RENAME_EXCHANGE) on most local filesystems.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    if not renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def remove_tree(folder: AnyPath) -> None:
    """Remove a directory, if it exists."""
    if isinstance(folder, RemotePath):
        folder.rmtree()
    else:
        shutil.rmtree(folder, ignore_errors=True)
