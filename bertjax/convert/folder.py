"""Write export folders atomically; in object storage, a folder is complete once its last file exists."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from bertjax.convert.model_card import CARD_FILE, digest_in_card
from bertjax.storage.atomic_directories import exchange, try_acquire
from bertjax.storage.files import sync
from bertjax.storage.json_documents import read_json
from bertjax.storage.remote import AnyPath, RemotePath, to_path
from bertjax.storage.sums import SUMS_FILE, sha256_of_file

Prove = Callable[[Path], None]  # raises if the written folder is wrong


def resolve_folder(directory: str | AnyPath) -> AnyPath:
    """Resolve a folder's path or URL; a local path becomes absolute, without symlinks."""
    path = to_path(str(directory))
    return path.resolve() if isinstance(path, Path) else path


@contextlib.contextmanager
def written_whole(target: AnyPath, last: str, prove: Prove | None = None) -> Iterator[Path]:
    """Yield an empty folder next to `target` to write files into, which replaces `target` at the end.

    `prove` is called with the folder before that. The old content is removed last, and restored if the replacement
    fails. After an error inside or in `prove`, nothing has changed. In object storage the file `last` is removed first
    and uploaded last, so that a folder with it is complete. Raises ValueError while another process of this machine
    writes `target`.
    """
    if isinstance(target, RemotePath):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            yield folder
            if prove is not None:
                prove(folder)
            names = set(_names(folder))
            (target / last).unlink(missing_ok=True)
            for name in target.sizes().keys() - names:
                (target / name).unlink()
            target.upload_all(folder, sorted(names - {last}))
            (target / last).upload(folder / last)
        return
    with _lock(target):
        partial, earlier = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.earlier")
        # Left by a process that was killed.
        if earlier.exists() and not target.exists():
            earlier.rename(target)
        for path in (partial, earlier):
            shutil.rmtree(path, ignore_errors=True)
        partial.mkdir()
        try:
            yield partial
            if prove is not None:
                prove(partial)
            for path in partial.rglob("*"):
                sync(path)
            _put_in_place(partial, target, earlier)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends, and remove its file."""
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        acquired = try_acquire(lock)
        with contextlib.suppress(FileNotFoundError):
            # Another process may have replaced the file since it was opened here.
            acquired = acquired and os.path.samestat(os.fstat(lock.fileno()), path.stat())
        if not acquired:
            raise ValueError(f"{target}: another process is writing it; wait for it, or name another folder")
        try:
            yield
        finally:
            path.unlink()


def refuse_to_lose(target: AnyPath, export_files: Collection[str], weights: str) -> None:
    """Raise ValueError unless `target` is free, empty, or an unchanged export.

    `export_files` are its files, as paths within it; the file `weights` must have the digest of the card. In object
    storage an export without a card is an interrupted upload, which may be replaced.
    """
    if not target.exists():
        return
    advice = "choose another folder (--output), or move it away"
    if not target.is_dir():
        raise ValueError(f"export to {target}: there is a file of that name; {advice}")
    names = [name for name in _names(target) if name != SUMS_FILE]
    if foreign := [name for name in names if name not in export_files]:
        raise ValueError(f"export to {target}: it holds {foreign[0]}, which does not belong to an export; {advice}")
    if not names:
        return
    card, file = target / CARD_FILE, target / weights
    if isinstance(target, RemotePath) and not card.is_file():
        return
    if not (card.is_file() and file.is_file()) or digest_in_card(card, file.name) != sha256_of_file(file):
        raise ValueError(f"export to {target}: its {weights} does not match the digest in its {CARD_FILE}; {advice}")


def _names(folder: AnyPath) -> list[str]:
    """The files in a folder and below, as paths within it, in order."""
    if isinstance(folder, RemotePath):
        return sorted(folder.sizes())
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _put_in_place(partial: Path, target: Path, earlier: Path) -> None:
    """Rename `partial` to `target`, in one step if the two can be swapped.

    Otherwise an earlier export is renamed first. It is restored if the second rename fails, or by the next export if
    the process is killed in between.
    """
    if target.exists() and exchange(partial, target):
        sync(target.parent)
        return
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


@contextlib.contextmanager
def near(folder: AnyPath) -> Iterator[Path]:
    """Yield the folder, or a copy on this machine if it is in object storage."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        folder.download_all(Path(copy), folder.sizes())
        yield Path(copy)


def write_texts(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files into a folder and its subfolders, text as UTF-8."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors by name in the format of safetensors. Raises OSError if that fails, as on a full disk."""
    try:
        # transformers requires "pt", the convention of names and layouts.
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path} was not written: {error}") from None


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def require_content(path: Path) -> None:
    """Raise ValueError for a file that holds a Git LFS pointer in place of its content."""
    with path.open("rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise ValueError(f"{path} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object of another system. Raises ValueError as `read_json` does, or if there is no file."""
    try:
        require_content(path)
        return read_json(path, remedy="get the file again")
    except OSError as error:
        raise ValueError(f"{path}: {(error.strerror or str(error)).lower().removesuffix(' or directory')}") from None


def as_json(values: Any) -> str:
    """Serialise values to the text of a JSON file, deterministically."""
    return json.dumps(values, indent=2, sort_keys=True) + "\n"
