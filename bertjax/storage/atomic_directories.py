"""What is kept below `data.root`: whole or not at all, under the fingerprint of what it is made from."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertjax.storage.locks import wait_for
from bertjax.storage.remote import Place, RemotePath, is_remote

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_inputs(found: Any, inputs: str, where: Place) -> None:
    """Raise ValueError unless what is kept under the first digits of a fingerprint has the whole of it."""
    if found != inputs:
        raise ValueError(f"{where} was made from other inputs ({found}, needed {inputs}); delete it")


def is_kept(folder: Place, last: str) -> bool:
    """Whether what is kept in a folder is there: the folder appears whole, but of a remote one the file `last` last."""
    return (folder / last).is_file() if is_remote(folder) else folder.exists()


@contextlib.contextmanager
def nothing_left_of(folder: Place, bytes_needed: Callable[[], int]) -> Iterator[None]:
    """Remove a folder if the text turns out to be wrong or the disk full, and name it in the message of the latter."""
    try:
        yield
    except ValueError:
        remove_tree(folder)
        raise
    except OSError as error:
        if error.errno not in _DISK_FULL or is_remote(folder):
            raise
        remove_tree(folder)
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"cannot write {folder} ({error.strerror}): about {bytes_needed() / 1e6:.1f} MB are needed there, "
            f"{free / 1e6:.1f} MB are free; make room, or set data.root to a larger disk",
        ) from error


def alone_in(root: Place) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process makes something below `root`; where it is remote, that is up to the user."""
    return _locked(root, shared=False)


def beside_others_in(root: Place) -> contextlib.AbstractContextManager[None]:
    """Wait until no other process makes something below `root` alone; those that do a share of it may go on."""
    return _locked(root, shared=True)


@contextlib.contextmanager
def _locked(root: Place, shared: bool) -> Iterator[None]:
    if not isinstance(root, Path):
        yield
        return
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        wait_for(lock, shared)
        yield


def scratch_for(folder: Place, prefix: str = "") -> tempfile.TemporaryDirectory[str]:
    """A folder in which to write what is then put into `folder`: in it, or on this machine if it is remote."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=None if is_remote(folder) else str(folder))


def publish(file: Path, folder: Place) -> None:
    """Put a file that is on the disk for good into a folder, in one step and over one of its name."""
    if isinstance(folder, RemotePath):
        (folder / file.name).upload(file)
    else:
        os.replace(file, folder / file.name)


def remove_tree(folder: Place) -> None:
    """Remove a folder, if it is there."""
    if isinstance(folder, RemotePath):
        folder.rmtree()
    else:
        shutil.rmtree(folder, ignore_errors=True)
