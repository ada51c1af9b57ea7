"""`SHA256SUMS`: the digest of every file in a folder, in coreutils' format (`sha256sum -c SHA256SUMS`).

The first line counts the files, which reveals a truncated list; coreutils skips it. The file is written last, so a
folder whose writing was interrupted has none.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bertjax.storage.files import read_whole, replace_text
from bertjax.storage.remote import AnyPath, open_bytes

SUMS_FILE = "SHA256SUMS"
_HEAD = re.compile(r"# (\d{1,9}) files")
_LINE = re.compile(r"([0-9a-f]{64})  ([^\\\n]+)")
_CHUNK = 1 << 20

Done = Callable[[int], object]  # called with the number of bytes checked


def write_sums(folder: AnyPath, names: Sequence[str] | None = None) -> None:
    """Write the digests of `names`, paths within a folder; by default, of all files in a local folder."""
    if names is None:
        assert isinstance(folder, Path), "a folder in object storage names its files"
        names = _files_in(folder)
    names = sorted({*names} - {SUMS_FILE})
    lines = [f"{sha256_of_file(folder / name)}  {name}\n" for name in names]
    replace_text(folder / SUMS_FILE, f"# {len(names)} files\n" + "".join(lines))


def read_sums(folder: AnyPath) -> dict[str, str]:
    """Read the SHA-256 (hex) of each path within a folder. Raises FileNotFoundError, ValueError for a bad line."""
    path = folder / SUMS_FILE
    text = read_whole(path).decode("utf-8", "replace")
    head, *lines = text.removesuffix("\n").split("\n")
    digests: dict[str, str] = {}
    for number, line in enumerate(lines, 2):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in digests or {"..", ""} & {*match[2].split("/")}:
            raise ValueError(f"{path}, line {number}: {line[:120]!r} is not a digest and a file in this folder")
        digests[match[2]] = match[1]
    count = _HEAD.fullmatch(head)
    if count is None or int(count[1]) != len(digests) or not text.endswith("\n"):
        raise ValueError(f"{path}: it lists {len(digests)} files, but its first line is {head[:40]!r}")
    return digests


def check_sums(folder: Path, done: Done = lambda more: None, *, may_have_more: bool = False) -> Iterator[str]:
    """Yield a sentence for each file that differs from the folder's `SHA256SUMS`.

    `may_have_more` allows files that are not listed.
    """
    try:
        sums = read_sums(folder)
    except FileNotFoundError:
        yield f"{folder / SUMS_FILE}: missing; the other files cannot be verified"
        return
    except ValueError as error:
        yield str(error)
        return
    for name, digest in sums.items():
        path = folder / name
        if not path.is_file():
            yield f"{path}: missing; {SUMS_FILE} lists it"
        elif sha256_of_file(path, done) != digest:
            yield f"{path}: its SHA-256 differs from the one in {SUMS_FILE}"
    if not may_have_more:
        for name in sorted({*_files_in(folder)} - sums.keys() - {SUMS_FILE}):
            yield f"{folder / name}: not in {SUMS_FILE}; it belongs to something else, or is a leftover"


def sha256_of_file(path: str | AnyPath, done: Done = lambda more: None) -> str:
    """SHA-256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with open_bytes(str(path)) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done(len(chunk))
    return digest.hexdigest()


def folder_size(folder: Path) -> int:
    """The total size in bytes of the files in a folder, at any depth."""
    return sum(os.path.getsize(folder / name) for name in _files_in(folder))


def _files_in(folder: Path) -> list[str]:
    """List the files in a folder, at any depth, as paths within it."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
