"""Which file of a folder is a task's training, development or test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertjax.storage.lines import COMPRESSED


class MissingSplitError(ValueError):
    """A set of a task that is not there."""


def split_file(folder: Path, names: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """The file that is called one of `names` with one of `suffixes`, compressed or not; None if there is none.

    Raises ValueError if there are several.
    """
    ends = [suffix + packed for suffix in suffixes for packed in ("", *COMPRESSED)]
    found = [path for name in names for end in ends if (path := folder / f"{name}{end}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder}: {' and '.join(path.name for path in found)} could both be meant; keep one there")
    return found[0] if found else None


def missing(folder: Path, split: str, files: Sequence[str]) -> MissingSplitError:
    """The refusal where none of `files` is in the folder."""
    if not folder.exists():
        return MissingSplitError(f"{folder}: no {split} set: no such file or folder; mend the path")
    what = f"none of {', '.join(files)} is there" if folder.is_dir() else "a file, not a folder"
    return MissingSplitError(f"{folder}: no {split} set: {what}; name the folder that holds it as --data")
