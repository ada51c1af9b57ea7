"""A folder of an export: on the disk whole, or not there; in object storage finished when it has its last file."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bertjax.text.remote import Place, RemotePath, place_of
from bertjax.text.store_writer import sync


def folder_of(directory: str | Place) -> Place:
    """The place of a folder's path or URL; of a path, from the root on and without links."""
    place = place_of(str(directory))
    return place.resolve() if isinstance(place, Path) else place


@contextlib.contextmanager
def written_whole(target: Place, last: str) -> Iterator[Path]:
    """An empty folder beside `target` to write files into, which takes the place of `target` at the end.

    What was there makes way only then, and comes back if that fails. After an error inside, nothing has changed. Of a
    `target` in object storage the file `last` is removed first and uploaded last, so that what has it is whole.
    """
    if isinstance(target, RemotePath):
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)
            _upload(Path(made), target, last)
        return
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


def _upload(folder: Path, target: RemotePath, last: str) -> None:
    names = {path.name for path in folder.iterdir()}
    (target / last).unlink(missing_ok=True)
    for name in target.sizes().keys() - names:
        (target / name).unlink()
    target.upload_all(folder, sorted(names - {last}))
    (target / last).upload(folder / last)


@contextlib.contextmanager
def near(folder: Place) -> Iterator[Path]:
    """The folder, or a copy on this machine if it is in object storage."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        folder.download_all(Path(copy), folder.sizes())
        yield Path(copy)
