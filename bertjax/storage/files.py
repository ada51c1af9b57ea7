"""Read small files whole, up to a bound, and write files atomically: readers see the old file or the new one."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bertjax.storage.remote import AnyPath, RemotePath, file_size, open_bytes

# Errors of a write or a sync, to which Python does not add the file name.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
MOST_WHOLE = 64 << 20  # most bytes of a file that is read whole; vocabularies have up to 40 MB


def read_whole(path: AnyPath, most: int = MOST_WHOLE) -> bytes:
    """Read a whole file. Raises ValueError, without reading it to the end, if it has more than `most` bytes."""
    if (size := file_size(str(path))) <= most:
        with open_bytes(str(path)) as file:
            content = file.read(most + 1)  # a pipe has a size of 0
        if (size := len(content)) <= most:
            return content
    raise ValueError(f"{path}: {size:,} bytes, but such a file has at most {most:,}; is it the right one?")


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file name to disk errors that lack one, while the file is written, flushed or synced."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _DISK_ERRORS:
            error.filename = str(path)
        raise


def replace_text(path: AnyPath, text: str) -> None:
    """Write `text` as UTF-8, like `replace_bytes`."""
    replace_bytes(path, text.encode())


def replace_bytes(path: AnyPath, content: bytes) -> None:
    """Replace a file atomically, see `replacing`; object storage replaces objects atomically by itself."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` atomically on exit; after an error, `path` is unchanged.

    The temporary file is in the same directory, and is synced before it is renamed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with naming(path), temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_durably(path: AnyPath, content: bytes) -> None:
    """Write a file so that it is complete or absent after a crash at any moment."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        with naming(path), open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Sync a file, or the entries of a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)
