"""The files of a task: which file of a folder holds which split, and whole files as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertjax.storage.lines import COMPRESSED, read_chunks

# By split: the names that files of a user's own may have.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


class MissingSplitError(ValueError):
    """A split of a task is missing."""


def split_file(folder: Path, names: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """The file with one of `names` and one of `suffixes`, compressed or not; None if there is none.

    Raises ValueError if there are several.
    """
    ends = [suffix + packed for suffix in suffixes for packed in ("", *COMPRESSED)]
    found = [path for name in names for end in ends if (path := folder / f"{name}{end}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder}: {' and '.join(path.name for path in found)} could both be meant; keep one there")
    return found[0] if found else None


def missing(folder: Path, split: str, files: Sequence[str]) -> MissingSplitError:
    """The error for a folder that holds none of `files`."""
    if not folder.exists():
        return MissingSplitError(f"{folder}: no {split} set: no such file or folder; mend the path")
    what = f"none of {', '.join(files)} is there" if folder.is_dir() else "a file, not a folder"
    return MissingSplitError(f"{folder}: no {split} set: {what}; name the folder that holds it as --data")


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
