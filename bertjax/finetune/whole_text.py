"""A file's text, all of it, and nothing in place of what is no text."""

from __future__ import annotations

from pathlib import Path

from bertjax.storage.lines import read_chunks


def whole_text(path: Path) -> str:
    """The text of a UTF-8 file, decompressed by suffix (.gz .bz2 .xz .zst).

    Raises ValueError naming the file if it is not there, and the line too where it is not UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    content = b"".join(read_chunks(str(path), str(path)))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 at byte {error.start}; convert the file (iconv -t utf-8)") from None
