"""A folder of an export: on the disk whole, or not there."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from bertjax.text.store_writer import sync


@contextlib.contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` to write files into, which takes the place of `target` at the end.

    What was there makes way only then, and comes back if that fails. After an error inside, nothing has changed.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        for path in partial.iterdir():
            sync(path)
        _put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; an earlier export makes way first and comes back if that fails."""
    earlier = target.with_name(f".{target.name}.earlier")
    shutil.rmtree(earlier, ignore_errors=True)
    if target.exists():
        target.rename(earlier)
    try:
        partial.rename(target)
    except OSError:
        if earlier.exists():
            earlier.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(earlier, ignore_errors=True)
