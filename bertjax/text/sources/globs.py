"""The files that a glob matches, local or in object storage, and where to get text if it matches none."""

from __future__ import annotations

import glob
import os
import re

from bertjax.storage.remote import is_remote, listing_command, remote_files

DUMPS = "https://dumps.wikimedia.org/enwiki/latest/enwiki-latest-pages-articles-multistream.xml.bz2"
_BOOKS = (
    "BooksCorpus is not distributed any more; use your own books, a text file each (text:books/*.txt), or Project "
    "Gutenberg's by tfds:pg19:book_text"
)


class NoFilesError(ValueError):
    """A glob that matches nothing."""


def matching_files(pattern: str) -> dict[str, int]:
    """Path -> bytes of the files that a glob matches, in order; `**` matches any depth, `~` is the home directory.

    Raises NoFilesError naming the working directory, or how to list a remote folder, when there are none.
    """
    if is_remote(pattern):
        found = remote_files(pattern)
        if not found:
            raise NoFilesError(f"the glob matches nothing (see what is there with {listing_command(pattern)})")
        return dict(sorted(found.items()))
    pattern = os.path.expanduser(pattern)
    paths = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
    files = sorted(path for path in paths if os.path.isfile(path))
    if not files:
        what = "only directories; add /* or /**" if paths else f"nothing (working directory {os.getcwd()})"
        raise NoFilesError(f"the glob matches {what}")
    return {path: os.path.getsize(path) for path in files}


def where_books_are(pattern: str) -> str:
    """What to use in place of BooksCorpus, for a pattern that seems to mean it; else ''."""
    return _BOOKS if re.search("book", pattern, re.IGNORECASE) else ""
