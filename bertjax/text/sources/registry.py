"""Where text comes from: `kind:what` on the command line, files of that kind, and their documents as a stream."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from bertjax.storage.lines import Span
from bertjax.storage.remote import is_remote, open_bytes
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import Document, assemble
from bertjax.text.sources import docs, formats, parquet, tfds
from bertjax.text.sources.formats import DEFAULT_FIELD
from bertjax.text.sources.globs import NoFilesError, matching_files, where_from
from bertjax.text.sources.wikipedia import dump as wikipedia

_FORMATS: dict[str, Callable[[str, ReadCounts], formats.Paragraphs]] = {
    "text": formats.read_text,
    "lines": formats.read_sentence_lines,
    "wikiextractor": formats.read_wikiextractor,
}
_RECORDS: dict[str, Callable[[str, ReadCounts, str], formats.Paragraphs]] = {
    "jsonl": formats.read_jsonl,
    "parquet": parquet.read,
}
TFRECORD = "tfrecord"  # not text, but rows of google-research/bert's: bertjax.input.tfrecords.records reads them
KINDS = ("text", "lines", "jsonl", "wikiextractor", "docs", "tfds", "wikipedia", "parquet", TFRECORD)
# A field is told from a file's name by what it cannot have: no folder, no suffix, no wildcard.
_FIELD = re.compile(r"(?P<glob>.+):(?P<field>[^:./*?\[\]]+)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A `kind:pattern` that a user gave."""

    kind: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind


@dataclass(frozen=True)
class SourceFile:
    """A unit of reading: one file or, of `docs`, some modules of one package."""

    kind: str
    path: str  # of `docs`, a name such as numpy[2], the same wherever the package is installed
    members: tuple[str, ...] = ()  # of `docs`, the modules' files
    feature: str = ""  # of `tfds`, `jsonl` and `parquet`, where the text is in a record, unless it is in `text`
    span: Span | None = None  # of `wikipedia`, the bytes of a multistream dump in which the streams to read begin
    listed: int | None = None  # of a remote file, its bytes

    @property
    def size(self) -> int:
        """Bytes on disk, for balancing work."""
        if self.span is not None:
            return self.span[1] - self.span[0]
        if self.listed is not None:
            return self.listed
        return sum(os.path.getsize(path) for path in self.members or (self.path,))


def parse_source(text: str) -> Source:
    """Parse `kind:glob`, `jsonl:glob[:FIELD]` (`parquet` too), `docs[:numpy,jax]` or `tfds:NAME[:FEATURE]`.

    Raises ValueError for an unknown kind, with the nearest one, or a missing glob.
    """
    kind, colon, pattern = text.partition(":")
    if kind == "docs" and (pattern or not colon):
        return Source(kind, pattern)
    if not colon:
        raise ValueError(f"source {text!r}: no kind; write kind:glob, e.g. text:{text}; kinds: {', '.join(KINDS)}")
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]}:{pattern}? " if near else ""
        if pattern.startswith("//"):
            hint = f"of a URL too the kind stands first, as in text:{text}; "
        raise ValueError(f"source {text!r}: unknown kind {kind!r}; {hint}kinds: {', '.join(KINDS)}")
    if not pattern:
        raise ValueError(f"source {text!r}: nothing after the colon; write {kind}:glob, e.g. {kind}:books/*.txt")
    return Source(kind, pattern)


def source_files(source: Source) -> list[SourceFile]:
    """The files of a source, sorted by path.

    Raises ValueError when there are none, with where they can be had, or all of them are empty.
    """
    if source.kind == "docs":
        return [SourceFile("docs", name, members) for name, members in docs.units(source.pattern)]
    if source.kind == "tfds":
        feature, paths = tfds.shards(source.pattern)
        return [SourceFile("tfds", path, feature=feature) for path in paths]
    wanted, field = _glob_and_field(source)
    try:
        files = matching_files(wanted)
    except NoFilesError as error:
        hint = f"; {field!r} was taken for the field (if it is none, add :{DEFAULT_FIELD})" if field else ""
        advice = where_from(source.kind, source.pattern)
        raise ValueError(f"source {source}: {error}{hint}{'; ' if advice else ''}{advice}") from None
    if not any(files.values()):
        raise ValueError(f"source {source}: no text, every file is empty ({len(files)}, e.g. {next(iter(files))})")
    if source.kind == "parquet":
        for path in files:
            parquet.require_field(path, field or DEFAULT_FIELD)
    feature = "" if field == DEFAULT_FIELD else field
    return [
        SourceFile(source.kind, path, feature=feature, listed=size if is_remote(path) else None)
        for path, size in files.items()
    ]


def _glob_and_field(source: Source) -> tuple[str, str]:
    """The parts of `GLOB[:FIELD]`, the field '' if there is none. A glob that ends like one is written with `:text`."""
    found = _FIELD.fullmatch(source.pattern) if source.kind in _RECORDS else None
    return (found["glob"], found["field"]) if found else (source.pattern, "")


def read_documents(file: SourceFile, counts: ReadCounts | None = None) -> Iterator[Document]:
    """Stream the documents of a file in bounded memory (at most `DOCUMENT_CAP` characters each), adding to `counts`.

    Raises ValueError naming file and place for anything that is not text of the file's kind.
    """
    counts = ReadCounts() if counts is None else counts
    return assemble(_paragraphs(file, counts), counts, sentence_per_line=file.kind == "lines")


def _paragraphs(file: SourceFile, counts: ReadCounts) -> formats.Paragraphs:
    if file.kind == "docs":
        return docs.read(file.members, counts)
    if file.kind == "tfds":
        return tfds.read(file.path, file.feature, counts)
    if file.kind == "wikipedia":
        return wikipedia.read(file.path, counts, file.span)
    if file.kind in _RECORDS:
        return _RECORDS[file.kind](file.path, counts, file.feature or DEFAULT_FIELD)
    return _FORMATS[file.kind](file.path, counts)


def require_text(sources: Iterable[Source]) -> None:
    """Raise ValueError for a source that has rows in place of text."""
    for source in sources:
        if source.kind == TFRECORD:
            raise ValueError(
                f"source {source}: its records are prepared already, as rows of ids; there is nothing to make of them: "
                "`bertjax pretrain` trains on them with --data.vocab, the vocab.txt that they were made with"
            )


def require_documents(source: Source, counts: ReadCounts) -> None:
    """Raise ValueError unless reading the whole source gave a document; `counts` are the sums over its files."""
    if not counts.documents:
        raise ValueError(
            f"source {source}: no text in it ({counts.empty_documents} documents, all empty); "
            f"is it really of kind {source.kind}?"
        )


def digest(file: SourceFile) -> str:
    """SHA-256 (hex) of a file's bytes as they lie on disk; of `docs`, of its modules' digests in order."""
    parts = [_sha256(path) for path in file.members or (file.path,)]
    return parts[0].hex() if not file.members else hashlib.sha256(b"".join(parts)).hexdigest()


def _sha256(path: str) -> bytes:
    with open_bytes(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()
