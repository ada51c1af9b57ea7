"""Writing a whole file so that a reader sees the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bertjax.storage.remote import Place, RemotePath


def replace_text(path: Place, text: str) -> None:
    """Write `text` as UTF-8 to `path` as `replace_bytes` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Place, content: bytes) -> None:
    """Write `content` to `path` as `replacing` does; an object in object storage is replaced whole by nature."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` at the end, atomically.

    It is a temporary file beside it, flushed to disk and then renamed. After an error inside, nothing has changed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_durably(path: Place, content: bytes) -> None:
    """Write a file so that, after a crash at any moment, it is there whole or not at all."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    partial = path.with_name(f"{path.name}.partial")
    try:
        with open(partial, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Bring a file, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
