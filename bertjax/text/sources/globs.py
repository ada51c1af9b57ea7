"""Find the files that a glob matches, local or in object storage, and give advice if it matches none."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bertjax.storage.lines import COMPRESSED
from bertjax.storage.remote import is_remote, listing_command, remote_files

DUMPS = "https://dumps.wikimedia.org/enwiki/latest/enwiki-latest-pages-articles-multistream.xml.bz2"
_BOOKS = (
    "BooksCorpus is not distributed any more; use your own books, a text file each (text:books/*.txt), or those of "
    "Project Gutenberg (tfds:pg19:book_text)"
)


class NoFilesError(ValueError):
    """A glob matches nothing. `example` is a glob that matches files in the same folder, or ''."""

    example = ""


class Matches(NamedTuple):
    """Path -> bytes of files in order, and the other files of a folder."""

    sizes: dict[str, int]
    others: list[str]


def matching_files(pattern: str, folder_names: Sequence[str] = ("*",), exclude: Sequence[str] = ()) -> Matches:
    """Find the files that a glob matches; `**` matches any depth, `~` is the home directory.

    A folder stands for the files in it, at any depth, whose name without a compression suffix matches one of
    `folder_names`. `exclude` has globs of paths or names to leave out. Raises NoFilesError, with advice, if no file
    remains.
    """
    pattern = os.path.expanduser(pattern)
    if is_remote(pattern):
        sizes = remote_files(f"{pattern}**" if pattern.endswith("/") else pattern)
    else:
        sizes = _local_files(pattern)
    if not sizes:
        raise NoFilesError(_why_nothing(pattern))
    everything = sizes
    if is_folder(pattern):
        sizes = {path: size for path, size in sizes.items() if has_name(path, folder_names)}
        if not sizes:
            raise _no_names(pattern, folder_names, everything)
    remaining = {path: size for path, size in sizes.items() if not is_excluded(path, exclude)}
    if not remaining:
        raise NoFilesError(f"data.exclude={tuple(exclude)} leaves out all {len(sizes)} files")
    others = sorted(path for path in everything.keys() - sizes.keys() if not is_excluded(path, exclude))
    return Matches(dict(sorted(remaining.items())), others)


def is_excluded(path: str, exclude: Sequence[str]) -> bool:
    """Whether one of the globs of `data.exclude` matches a path, or its last parts."""
    patterns = [os.path.expanduser(pattern).removeprefix("./").removeprefix("**/") for pattern in exclude]
    return any(fnmatch.fnmatchcase(path, one) or fnmatch.fnmatchcase(path, f"*/{one}") for one in patterns)


def is_folder(pattern: str) -> bool:
    """Whether a pattern names a folder; a remote folder ends with a slash."""
    return pattern.endswith("/") if is_remote(pattern) else os.path.isdir(os.path.expanduser(pattern))


def has_name(path: str, names: Sequence[str]) -> bool:
    """Whether a file's name, without a compression suffix, matches one of the globs, ignoring case."""
    name = os.path.basename(path)
    for ending in COMPRESSED:
        name = name.removesuffix(ending)
    return any(fnmatch.fnmatchcase(name.lower(), one) for one in names)


def _local_files(pattern: str) -> dict[str, int]:
    if os.path.isfile(pattern):
        return {pattern: os.path.getsize(pattern)}
    if os.path.isdir(pattern):
        pattern = os.path.join(glob.escape(pattern), "**")
    return {path: os.path.getsize(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)}


def _why_nothing(pattern: str) -> str:
    if is_remote(pattern):
        where = f"list the files with {listing_command(pattern)}"
    elif os.path.isdir(pattern):
        return "the folder has no files"
    elif glob.glob(pattern, recursive=True):
        return "the glob matches only directories; add /* or /**"
    else:
        where = f"working directory {os.getcwd()}"
    brackets = ""
    if "[" in pattern and "[[]" not in pattern:
        brackets = f"; [..] is a set of characters: for names with brackets write {pattern.replace('[', '[[]')}"
    return f"the glob matches nothing ({where}){brackets}"


def _no_names(folder: str, names: Sequence[str], paths: Iterable[str]) -> NoFilesError:
    endings = Counter(os.path.splitext(path)[1] for path in paths)
    has = ", ".join(f"{count} {ending or 'without a suffix'}" for ending, count in endings.most_common(5))
    error = NoFilesError(f"the folder has no {', '.join(names)} (it has {has})")
    error.example = f"{folder.rstrip('/')}/**/*{endings.most_common(1)[0][0]}"
    return error


def books_advice(pattern: str) -> str:
    """Suggest alternatives to BooksCorpus for a pattern that seems to mean it; else ''."""
    return _BOOKS if re.search("book", pattern, re.IGNORECASE) else ""
