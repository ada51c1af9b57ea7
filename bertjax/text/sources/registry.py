"""The kinds of source, and what is done with a source of any kind: find its files, read their documents."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator

from bertjax.storage.remote import is_remote, open_bytes
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import Document, assemble, divided
from bertjax.text.sources import docs, generated, jsonl, lines, parquet, text, tfds, tfrecord, wikiextractor
from bertjax.text.sources.globs import NoFilesError, matching_files, where_books_are
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind
from bertjax.text.sources.wikipedia import dump as wikipedia

KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (
        text.KIND,
        lines.KIND,
        jsonl.KIND,
        wikiextractor.KIND,
        docs.KIND,
        generated.KIND,
        tfds.KIND,
        wikipedia.KIND,
        parquet.KIND,
        tfrecord.KIND,
    )
}
# A field differs from a file's name in what it cannot have: no folder, no suffix, no wildcard.
_FIELD = re.compile(r"(?P<glob>.+):(?P<field>[^:./*?\[\]]+)", re.DOTALL)
_COMPRESSION = 4  # bytes of text for a byte of a compressed file


def parse_source(written: str) -> Source:
    """Parse `kind:pattern`, or the bare name of a kind that needs no pattern.

    Raises ValueError for an unknown kind, with the nearest one, or a missing pattern.
    """
    name, colon, pattern = written.partition(":")
    kind = KINDS.get(name)
    if not colon:
        if kind and kind.default_pattern is not None:
            return Source(name, kind.default_pattern)
        raise ValueError(
            f"source {written!r}: no kind; write kind:glob, e.g. text:{written}; kinds: {', '.join(KINDS)}"
        )
    if not kind:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]}:{pattern}? " if near else ""
        if pattern.startswith("//"):
            hint = f"of a URL too the kind comes first, as in {text.KIND.name}:{written}; "
        raise ValueError(f"source {written!r}: unknown kind {name!r}; {hint}kinds: {', '.join(KINDS)}")
    if not pattern:
        raise ValueError(f"source {written!r}: nothing after the colon; write {name}:glob, e.g. {name}:{kind.example}")
    return Source(name, pattern)


def source_files(source: Source) -> list[SourceFile]:
    """The files of a source, in order.

    Raises ValueError when there are none, with where they can be had, or all of them are empty.
    """
    kind = KINDS[source.kind]
    if kind.find:
        return kind.find(source)
    wanted, field = _glob_and_field(source)
    try:
        found = matching_files(wanted)
    except NoFilesError as error:
        hint = f"{field!r} was taken for the field (if it is none, add :{DEFAULT_FIELD})" if field else ""
        advice = kind.where_from or where_books_are(source.pattern)
        raise ValueError(f"source {source}: {'; '.join(filter(None, (str(error), hint, advice)))}") from None
    if not any(found.values()):
        raise ValueError(f"source {source}: no text, every file is empty ({len(found)}, e.g. {next(iter(found))})")
    feature = "" if field == DEFAULT_FIELD else field
    files = [
        SourceFile(source.kind, path, feature=feature, listed=size if is_remote(path) else None)
        for path, size in found.items()
    ]
    if kind.check:
        for file in files:
            kind.check(file)
    return files


def _glob_and_field(source: Source) -> tuple[str, str]:
    """The parts of `GLOB[:FIELD]`, the field '' if there is none. A glob that ends like one is written with `:text`."""
    found = _FIELD.fullmatch(source.pattern) if KINDS[source.kind].has_fields else None
    return (found["glob"], found["field"]) if found else (source.pattern, "")


def read_documents(file: SourceFile, counts: ReadCounts | None = None, longest: int = 0) -> Iterator[Document]:
    """Stream the documents of a file in bounded memory, long ones in parts (see `assemble`), adding to `counts`.

    With `longest`, several documents are made of one that has more characters (see `divided`).
    Raises ValueError naming file and offset of anything that is not text of the file's kind.
    """
    kind = KINDS[file.kind]
    assert kind.read is not None, f"{file.kind} has no text: require_text was not called"
    counts = ReadCounts() if counts is None else counts
    paragraphs = kind.read(file, counts)
    if longest:
        paragraphs = divided(paragraphs, longest, counts)
    return assemble(paragraphs, counts, sentence_per_line=kind.sentence_per_line)


def is_text(source: Source) -> bool:
    """Whether a source holds text; otherwise it holds rows of ids."""
    return KINDS[source.kind].read is not None


def require_text(sources: Iterable[Source]) -> None:
    """Raise ValueError for a source that has rows in place of text."""
    for source in sources:
        if not is_text(source):
            raise ValueError(f"source {source}: {KINDS[source.kind].no_text}")


def text_bytes(file: SourceFile) -> int:
    """About how many bytes of text a file has, by its size."""
    return file.size * (_COMPRESSION if file.path.endswith(KINDS[file.kind].compressed) else 1)


def split_file(file: SourceFile, count: int) -> list[SourceFile]:
    """A file as about `count` parts that can be read at the same time, or as it is where its kind cannot be split."""
    split = KINDS[file.kind].split
    return split(file, count) if split and count > 1 else [file]


def require_documents(source: Source, counts: ReadCounts) -> None:
    """Raise ValueError unless reading the whole source gave a document; `counts` are the sums over its files."""
    if not counts.documents:
        raise ValueError(
            f"source {source}: no text in it ({counts.empty_documents} documents, all empty); "
            f"is it really of kind {source.kind}?"
        )


def digest(file: SourceFile) -> str:
    """SHA-256 (hex) of a file's bytes as they lie on disk; of several files, of their digests in order."""
    parts = [_sha256(path) for path in file.members or (file.path,)]
    return parts[0].hex() if not file.members else hashlib.sha256(b"".join(parts)).hexdigest()


def _sha256(path: str) -> bytes:
    with open_bytes(path) as stream:
        return hashlib.file_digest(stream, "sha256").digest()
