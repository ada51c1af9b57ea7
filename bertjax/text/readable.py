"""Report all unreadable files of a corpus at once, or leave them out (`data.on_error`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from bertjax.config import DataConfig
from bertjax.storage.progress import SIGNS, Progress
from bertjax.storage.remote import to_path
from bertjax.storage.utf8 import FileAccessError, NotTextError, UnreadableFileError
from bertjax.text.corpus import Corpus, Unit
from bertjax.text.file_caches import extend_cache, read_cache
from bertjax.text.pool import Runner
from bertjax.text.sources.registry import KINDS, read_documents
from bertjax.text.sources.source import SourceFile

_LISTED = 20  # files in a message
_CHECKED_BYTES = 4 << 30  # of text to read at most in search of more unreadable files after the first
_VERDICTS_VERSION = "2"  # of the cache's content
_WHAT = "looking for files that cannot be read"


class Failure(NamedTuple):
    """Why a file cannot be read."""

    path: str
    message: str
    likely: str  # the encoding that the file seems to have, or ''
    is_lasting: bool = True  # whether the content is the reason, not the storage


def readable_corpus(data: DataConfig, progress: Progress, runner: Runner) -> Corpus:
    """Find the corpus of `data.sources`, without unreadable files if `data.on_error` is "skip".

    Raises ValueError like `Corpus.of`, and for a source without a readable file.
    """
    corpus = Corpus.of(data)
    if data.on_error == "stop":
        return corpus
    cache_path = to_path(data.root) / "unreadable.json"
    cache = read_cache(cache_path)
    everything = [(file, _key(file, digest)) for group in corpus.hashed for file, digest, _ in group]
    new = {file.reading for file, key in everything if key not in cache}
    units = [replace(unit, files=tuple(file for file in unit.files if file.reading in new)) for unit in corpus.units]
    failures = _failures([unit for unit in units if unit.files], progress, runner)
    unread = {reading: failure.message for reading, failure in failures.items() if not failure.is_lasting}
    fresh = {
        key: failures[file.reading].message if file.reading in failures else ""
        for file, key in everything
        if file.reading in new and file.reading not in unread
    }
    extend_cache(cache_path, cache, fresh)
    cache |= fresh
    verdicts = {file.reading: unread.get(file.reading) or cache[key] for file, key in everything}
    return corpus.without({reading: reason for reading, reason in verdicts.items() if reason})


@contextmanager
def reporting_unreadable(corpus: Corpus, progress: Progress, runner: Runner) -> Iterator[None]:
    """If reading a file fails, find the other unreadable files and raise one ValueError that names them all."""
    try:
        yield
    except UnreadableFileError as error:
        if sum(map(len, corpus.files)) == 1:
            likely = error.likely if isinstance(error, NotTextError) else ""
            raise ValueError(_report([Failure("", str(error), likely)], corpus, False)) from error
        units, size = [], 0
        for unit in corpus.units:
            if size < _CHECKED_BYTES:
                units.append(unit)
                size += unit.size
        failures = list(_failures(units, progress, runner).values())
        if not failures:
            raise
        raise ValueError(_report(failures, corpus, len(units) < len(corpus.units))) from error


def _key(file: SourceFile, digest: str) -> str:
    """The cache key of a file's readability. It includes the file's name, because the cached message does."""
    name = os.path.basename(file.path)
    read_as = (_VERDICTS_VERSION, file.kind, str(KINDS[file.kind].version), file.encoding, file.feature, file.spans)
    return " ".join((*read_as, *(["without bad records"] if file.leaves_out else []), digest, name))


def _failures(units: Sequence[Unit], progress: Progress, runner: Runner) -> dict[tuple[str, ...], Failure]:
    """Find the unreadable files of units: `SourceFile.reading` -> failure, sorted."""
    failures: dict[tuple[str, ...], Failure] = {}
    total, done = sum(unit.size for unit in units), 0
    with SIGNS.doing(_WHAT):
        for unit, unreadable in runner(_unreadable_files, units, _WHAT):
            for place, message, likely, is_lasting in unreadable:
                file = unit.files[place]
                failures[file.reading] = Failure(file.path, message, likely, is_lasting)
            done += unit.size
            progress(f"{_WHAT}, bytes", done, total)
    return dict(sorted(failures.items()))


def _unreadable_files(unit: Unit) -> list[tuple[int, str, str, bool]]:
    """Find the unreadable files of a unit: (place in the unit, message, likely encoding, `is_lasting`) of each."""
    failures = []
    for place, file in enumerate(unit.files):
        try:
            for _ in read_documents(file):
                pass
        except UnreadableFileError as error:
            likely = error.likely if isinstance(error, NotTextError) else ""
            failures.append((place, str(error), likely, not isinstance(error, FileAccessError)))
    return failures


def _report(failures: Sequence[Failure], corpus: Corpus, is_part: bool) -> str:
    count = sum(map(len, corpus.files))
    names = [os.path.basename(failure.path) for failure in failures]
    likely = sorted({failure.likely for failure in failures if failure.likely})
    encoding = f"; if all text is {likely[0]}: --data.encoding {likely[0]}" if len(likely) == 1 else ""
    if len(failures) == 1:
        leave_out = f"; to leave it out: --data.exclude '{names[0]}', or --data.on-error skip" if count > 1 else ""
        return f"{failures[0].message}{encoding}{leave_out}"
    listed = [failure.message.partition("; ")[0] for failure in failures[:_LISTED]]
    listed = [
        f"{line}; likely {failure.likely}" if failure.likely else line
        for line, failure in zip(listed, failures, strict=False)
    ]
    if len(failures) > _LISTED:
        listed.append(f"and {len(failures) - _LISTED:,} more")
    advice = f"to leave them out: --data.on-error skip, or --data.exclude '{names[0]}' and so on"
    if likely:
        advice += f"; to convert a file: iconv -f {likely[0]} -t utf-8{encoding}"
    checked = f"of the first {_CHECKED_BYTES >> 30} GiB, " if is_part else ""
    return "\n  ".join((f"{checked}{len(failures):,} of {count:,} files cannot be read:", *listed)) + f"\n{advice}"
