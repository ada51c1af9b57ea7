"""Putting finished files where others look for them: by a move on this machine's disks, by an upload elsewhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bertjax.text.remote import Place, RemotePath, is_remote


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
