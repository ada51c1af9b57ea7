"""The text of a run: its files with their digests, cut into units of work, and which documents are held out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from bertjax.config import DataConfig
from bertjax.storage.lines import read_chunks
from bertjax.storage.remote import AnyPath, is_remote, object_state, to_path
from bertjax.storage.utf8 import UTF8, detect_encoding, encoding_name
from bertjax.text.documents import Document
from bertjax.text.file_caches import THREADS, extend_cache, file_digests, read_cache
from bertjax.text.groups import Groups, group_column
from bertjax.text.sources.registry import (
    KINDS,
    digest,
    find_files,
    parse_sources,
    require_text,
    split_file,
    text_bytes,
)
from bertjax.text.sources.source import Source, SourceFile
from bertjax.text.units import spans_field

UNIT_BYTES = 8 << 20  # of text, roughly; small enough that the processes finish together
LARGEST_UNIT = 1 << 30  # bytes of text, roughly; a killed process loses a unit
MOST_FILES = 5_000_000  # that a store and the digest cache can list: 200 bytes each, in 1 GiB
MAX_UNITS = 64  # in a corpus of up to about 64 GiB; every unit becomes a shard

_CUTTING_VERSION = 2  # of the rules that cut units
_NAMED_FILES = 3  # in a message
_REQUESTS = 32  # to object storage, at a time
_TO_SPACE = bytes(ord(" ") if byte < 128 and chr(byte).isspace() else byte for byte in range(256))
_SPACES_BEYOND_ASCII = "\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(frozen=True)
class Unit:
    """Successive files of one source for one process; becomes one shard of each split."""

    number: int
    source: int  # index of the source in the corpus
    files: tuple[SourceFile, ...]
    size: int  # bytes on disk
    digest: str = ""  # SHA-256 (hex) of the files' digests and reading options

    @property
    def name(self) -> str:
        """Prefix of the unit's file names."""
        return f"unit-{self.number:05}"


class HashedFile(NamedTuple):
    """A file of a corpus, as it was when it was hashed."""

    file: SourceFile
    digest: str  # SHA-256 (hex) of the content
    stamp: tuple[int, ...]  # size and change times


@dataclass(frozen=True)
class Corpus:
    """The sources of a run and their files, in order."""

    sources: tuple[Source, ...]
    hashed: tuple[tuple[HashedFile, ...], ...]  # the files of each source
    skipped: tuple[tuple[str, str], ...] = ()  # files that were left out, each with the reason

    @cached_property
    def files(self) -> tuple[tuple[SourceFile, ...], ...]:
        """The files of each source."""
        return tuple(tuple(one.file for one in group) for group in self.hashed)

    @classmethod
    def of(cls, data: DataConfig) -> Corpus:
        """Find and hash the files.

        Raises ValueError if there are no sources, or one of them has no files or no text.
        """
        if not data.sources:
            raise ValueError("data.sources is empty; give at least one, e.g. --data.sources 'text:books/*.txt'")
        sources = parse_sources(data.sources)
        require_text(sources)
        encoding = encoding_name(data.encoding)
        if encoding != UTF8 and not any(KINDS[source.kind].takes_encoding for source in sources):
            able = ", ".join(name for name, kind in KINDS.items() if kind.takes_encoding)
            raise ValueError(
                f"data.encoding={data.encoding!r} with data.sources={data.sources}: only files of {able} have an "
                "encoding; leave it out"
            )
        return cls.from_sources(sources, data)

    @classmethod
    def from_sources(cls, sources: tuple[Source, ...], data: DataConfig) -> Corpus:
        """Like `of`, with these sources instead of `data.sources`; digests are cached under `data.root`."""
        encoding = encoding_name(data.encoding)
        matches = [find_files(source, data.exclude, check=data.on_error == "stop") for source in sources]
        everything = [
            replace(
                file,
                spans=spans_field(data),
                group=group_column(data),
                encoding=encoding if KINDS[file.kind].takes_encoding else UTF8,
                leaves_out=data.bad_records > 0,
            )
            for one in matches
            for file in one.files
        ]
        if len(everything) > MOST_FILES:
            raise ValueError(
                f"data.sources: {len(everything):,} files, but a store can list only {MOST_FILES:,}; join them "
                "into files of many documents (jsonl:, lines:)"
            )
        stamps = _stamps(everything)
        digests = file_digests(everything, stamps, to_path(data.root) / "digests")
        hashed = map(HashedFile, everything, digests, stamps)
        groups = [tuple(islice(hashed, len(one.files))) for one in matches]
        if encoding == UTF8:
            cache_path = to_path(data.root) / "encodings.json"
            # A folder has files of many origins; other sources are read as they were named.
            groups = [
                _with_encodings(group, cache_path) if KINDS[source.kind].is_mixed else group
                for source, group in zip(sources, groups, strict=True)
            ]
        return cls(sources, tuple(groups), tuple(skip for one in matches for skip in one.skipped))

    def description(self) -> list[dict[str, Any]]:
        """The sources as JSON: their kinds, file names and digests, without directories."""
        described = []
        for source, group in zip(self.sources, self.hashed, strict=True):
            names = [
                [os.path.basename(file.path), digest] + ([file.feature] if file.feature else [])
                for file, digest, _ in group
            ]
            kinds = {one.file.kind for one in group}
            encodings = {one.file.encoding for one in group}
            if len(kinds) > 1 or len(encodings) > 1:
                for entry, (file, _, _) in zip(names, group, strict=True):
                    entry.append(f"{file.kind} {KINDS[file.kind].version} {file.encoding}")
            # A folder with files of only one kind is described like a source of that kind.
            kind = kinds.pop() if len(kinds) == 1 else source.kind
            version, encoding = KINDS[kind].version, encodings.pop() if len(encodings) == 1 else UTF8
            described.append(
                {"kind": kind, "files": names}
                | ({"version": version} if version else {})
                | ({"encoding": encoding} if encoding != UTF8 else {})
            )
        return described

    def detected_encodings(self) -> dict[str, list[str]]:
        """Map each encoding other than UTF-8 that was detected in a folder's files to those files."""
        files_by_encoding: dict[str, list[str]] = {}
        for source, files in zip(self.sources, self.files, strict=True):
            for file in files if KINDS[source.kind].is_mixed else ():
                if file.encoding != UTF8:
                    files_by_encoding.setdefault(file.encoding, []).append(file.path)
        return files_by_encoding

    def without(self, failures: Mapping[tuple[str, ...], str]) -> Corpus:
        """Return the corpus without the files in `failures`, a map from each file's `reading` to the reason.

        Raises ValueError for a source with no file left.
        """
        readable = tuple(tuple(one for one in group if one.file.reading not in failures) for group in self.hashed)
        for source, group in zip(self.sources, readable, strict=True):
            if not group:
                raise ValueError(f"source {source}: none of its files can be read: {next(iter(failures.values()))}")
        skipped = (*self.skipped, *((path, reason) for (path, *_), reason in failures.items()))
        return replace(self, hashed=readable, skipped=skipped)

    def changes_since(self, earlier: Sequence[Mapping[str, Any]]) -> list[str]:
        """Describe the changes since an earlier `description`, a phrase per source; renaming is not a change."""
        now = self.description()
        if len(now) != len(earlier):
            return [f"data.sources had {len(earlier)} sources and has {len(now)}"]
        return [
            f"{source}: {_file_changes(was['files'], files['files'])}"
            for source, was, files in zip(self.sources, earlier, now, strict=True)
            if _contents(was) != _contents(files)
        ]

    @cached_property
    def units(self) -> list[Unit]:
        """The files in groups of about equal amounts of text, whatever the number of processes.

        A large file that can be split becomes several units, each a span of its bytes. Up to 64 GiB of text become
        about `MAX_UNITS`, more become units of `LARGEST_UNIT`.
        """
        target = min(max(UNIT_BYTES, self.text_bytes // MAX_UNITS), LARGEST_UNIT)
        digests = {one.file.reading: one.digest for group in self.hashed for one in group}
        units: list[Unit] = []
        for source, group in enumerate(self.files):
            pending, pending_bytes = [], 0
            parts = [part for file in group for part in split_file(file, text_bytes(file) // target)]
            for part in parts:
                pending.append(part)
                pending_bytes += text_bytes(part)
                if pending_bytes >= target or part.span or part is parts[-1]:
                    size, digest = sum(file.size for file in pending), _unit_digest(pending, digests)
                    units.append(Unit(len(units), source, tuple(pending), size, digest))
                    pending, pending_bytes = [], 0
        return units

    def cutting(self) -> dict[str, Any]:
        """The version of the rules that cut units, as an input of a store; empty if version 1 cuts the same units.

        Version 1 did not split files of lines and made at most about `MAX_UNITS` units.
        """
        has_spans = any(file.span and KINDS[file.kind].takes_encoding for unit in self.units for file in unit.files)
        is_large = self.text_bytes // MAX_UNITS > max(UNIT_BYTES, LARGEST_UNIT)
        return {"cutting": _CUTTING_VERSION} if has_spans or is_large else {}

    @property
    def text_bytes(self) -> int:
        """The approximate bytes of text, estimated from file sizes."""
        return sum(text_bytes(file) for group in self.files for file in group)

    def require_unchanged(self) -> None:
        """Raise ValueError naming the first file whose content has changed since it was hashed."""
        refuse_changed(self.changed_files())

    def changed_files(self) -> Iterator[SourceFile]:
        """Yield the files whose content has changed since they were hashed.

        A file with a new stamp is hashed again: copying, restoring or touching a file changes only its times.
        """
        hashed = [one for group in self.hashed for one in group]
        stamps = _stamps([one.file for one in hashed])
        for one, stamp in zip(hashed, stamps, strict=True):
            if stamp != one.stamp and digest(one.file) != one.digest:
                yield one.file


def refuse_changed(files: Iterable[SourceFile]) -> None:
    """Raise ValueError naming the first of these `changed_files`, if there is any."""
    for file in files:
        raise ValueError(f"{file.path} was changed while it was read; run the command again when nothing writes to it")


def _unit_digest(files: Sequence[SourceFile], digests: Mapping[tuple[str, ...], str]) -> str:
    """SHA-256 (hex) of a unit's content and reading options; `digests` maps a file's `reading` to its digest."""
    described = [
        (
            *(file.kind, KINDS[file.kind].version, os.path.basename(file.path), digests[file.reading]),
            *(file.feature, file.spans, file.group, file.encoding, file.span),
        )
        for file in files
    ]
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _contents(description: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    return description["kind"], [content for _, *content in description["files"]]


def _file_changes(earlier: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """Describe how two lists of [name, digest, ...] differ, naming the first files."""
    before, after = ({name: content for name, *content in files} for files in (earlier, now))
    names = {
        "new": sorted(after.keys() - before.keys()),
        "missing": sorted(before.keys() - after.keys()),
        "changed": sorted(name for name in before.keys() & after.keys() if before[name] != after[name]),
    }
    phrases = [
        f"{len(files):,} {what} ({', '.join(files[:_NAMED_FILES])}{', …' if len(files) > _NAMED_FILES else ''})"
        for what, files in names.items()
        if files
    ]
    return ", ".join(phrases) or "the files are in another order"


def with_draws(
    documents: Iterable[Document], groups: Groups | None = None
) -> Iterator[tuple[Document, tuple[float, float]]]:
    """Yield each document part with its document's `draws`, taken from the first part, so that parts stay together.

    Documents in a group share the draws of the group's name.
    """
    document_draws = (0.0, 0.0)
    for document in documents:
        if not document.is_continuation:
            group = groups.of(document) if groups else None
            document_draws = draws(document.text if group is None else f"group {group}")
        yield document, document_draws


def draws(text: str) -> tuple[float, float]:
    """Two independent uniform numbers in [0, 1) that depend only on a document's words.

    A first number below `data.held_out` holds the document out; the second samples documents for training a vocabulary.
    """
    hashed = hashlib.blake2b(_words(text), digest_size=16).digest()
    return int.from_bytes(hashed[:8]) / 2**64, int.from_bytes(hashed[8:]) / 2**64


def _words(text: str) -> bytes:
    """Like `" ".join(text.split()).encode()`, but several times faster."""
    if not text.isascii() and any(space in text for space in _SPACES_BEYOND_ASCII):
        return " ".join(text.split()).encode()
    words = text.encode().translate(_TO_SPACE).strip()
    while b"  " in words:
        words = words.replace(b"  ", b" ")
    return words


def _stamps(files: Sequence[SourceFile]) -> tuple[tuple[int, ...], ...]:
    if not any(is_remote(file.path) for file in files):
        return tuple(_stamp(file) for file in files)
    with ThreadPoolExecutor(_REQUESTS) as threads:
        return tuple(threads.map(_stamp, files))


def _stamp(file: SourceFile) -> tuple[int, ...]:
    """Size, mtime and ctime of a file, summed or maximal over its members; `object_state` if the file is remote.

    Programs can restore the mtime after a change, but not the ctime.
    """
    if is_remote(file.path):
        return (file.size, 0) if file.digest else object_state(file.path)
    states = [os.stat(path) for path in file.members or (file.path,)]
    changed, inode_changed = (max(getattr(state, key) for state in states) for key in ("st_mtime_ns", "st_ctime_ns"))
    return sum(state.st_size for state in states), changed, inode_changed


def _with_encodings(files: Sequence[HashedFile], cache_path: AnyPath) -> tuple[HashedFile, ...]:
    """Detect the encoding of each file and return the files with it; results are cached by digest."""
    cache = read_cache(cache_path)

    def detect(one: HashedFile) -> str:
        try:
            return cache.get(one.digest) or detect_encoding(read_chunks(one.file.path, one.file.path))
        except ValueError:
            return UTF8  # reading it explains the error

    texts = [one for one in files if KINDS[one.file.kind].takes_encoding]
    with ThreadPoolExecutor(THREADS) as threads:
        encodings = {one.file: encoding for one, encoding in zip(texts, threads.map(detect, texts), strict=True)}
    extend_cache(cache_path, cache, {one.digest: encodings[one.file] for one in texts})
    return tuple(one._replace(file=replace(one.file, encoding=encodings.get(one.file, UTF8))) for one in files)
