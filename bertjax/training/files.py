"""Writing a whole file so that a reader sees the old one or the new one, never half of either."""

from __future__ import annotations

import os

from bertjax.text.remote import Place, RemotePath


def replace_text(path: Place, text: str) -> None:
    """Write `text` as UTF-8 to `path` as `replace_bytes` does."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Place, content: bytes) -> None:
    """Write `content` to `path`, atomically: to a temporary file beside it, flushed to disk, then renamed.

    An object in object storage is replaced whole by nature.
    """
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
