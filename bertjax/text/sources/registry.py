"""The kinds of source, and what is done with a source of any kind: find its files, read their documents."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from bertjax.storage.remote import is_remote
from bertjax.storage.sums import sha256_of_file
from bertjax.storage.utf8 import ReadCounts, UnreadableFileError
from bertjax.text.documents import Document, assemble, divided
from bertjax.text.sources import csv_rows, docs, generated, jsonl, lines, parquet, text, tfds, tfrecord, wikiextractor
from bertjax.text.sources.globs import NoFilesError, has_name, is_folder, matching_files, where_books_are
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind
from bertjax.text.sources.wikipedia import dump as wikipedia

KINDS: dict[str, SourceKind] = {
    kind.name: kind
    for kind in (
        text.KIND,
        lines.KIND,
        jsonl.KIND,
        csv_rows.KIND,
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
_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+(?:@[^/:]+)?)(?:/(?P<path>[^:]*))?(?P<field>:.*)?")
_COMPRESSION = 4  # bytes of text for a byte of a compressed file


def hub_data_set(pattern: str) -> Source:
    """The `parquet` source of `ORG/NAME[/GLOB][:FIELD]`; without a glob, of all Parquet files of the data set.

    Raises ValueError for another form.
    """
    found = _DATA_SET.fullmatch(pattern)
    if not found:
        raise ValueError(
            f"source hf:{pattern}: write hf:ORG/NAME, as in hf:wikimedia/wikipedia/20231101.en/*, or the name of a "
            "column behind it, hf:ORG/NAME:COLUMN"
        )
    glob = found["path"] or "**/*.parquet"
    return Source(parquet.KIND.name, f"hf://datasets/{found['name']}/{glob}{found['field'] or ''}")


# A name that stands for a pattern of another kind.
ALIASES: dict[str, Callable[[str], Source]] = {"hf": hub_data_set}


def parse_sources(written: Sequence[str]) -> tuple[Source, ...]:
    """Parse `data.sources`. Raises ValueError as `parse_source`, and for the files of a glob that was not quoted."""
    files = [text for text in written if ":" not in text and os.path.isfile(text)]
    if len(files) > 1:
        folders = {os.path.dirname(os.path.normpath(path)) for path in files}
        endings = {os.path.splitext(path)[1] for path in files}
        folder = os.path.commonpath(folders) if len(folders) > 1 else min(folders)
        name = f"*{endings.pop()}" if len(endings) == 1 else "*"
        pattern = os.path.join(folder, "**" if len(folders) > 1 else "", name)
        raise ValueError(
            f"data.sources has {len(files)} files without a kind ({files[0]}, {files[1]}, ...): the shell expanded a "
            f"glob; put it in quotes: '{likely_kind(files[0])}:{pattern}'"
        )
    return tuple(parse_source(text) for text in written)


def parse_source(written: str) -> Source:
    """Parse `kind:pattern`, the bare name of a kind that needs no pattern, or a folder of texts.

    Raises ValueError for an unknown kind, with the nearest one, a missing pattern, or a name that may be either a kind
    or a folder.
    """
    name, colon, pattern = written.partition(":")
    kind = KINDS.get(name)
    has_default = kind is not None and kind.default_pattern is not None
    if not colon:
        is_here = bool(written) and is_folder(written)
        if has_default and is_here:
            raise ValueError(
                f"source {written!r}: a kind of source, and also a folder here; write {text.KIND.name}:{written}/** "
                f"for the files of the folder, or {written}: for the source {written}"
            )
        if is_here:
            return Source(text.KIND.name, written)
        if not has_default:
            raise ValueError(
                f"source {written!r}: no kind; write kind:glob, e.g. {likely_kind(written)}:{written}; "
                f"kinds: {', '.join(KINDS)}"
            )
    elif name in ALIASES:
        return ALIASES[name](pattern)
    if not kind:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]}:{pattern}? " if near else ""
        if pattern.startswith("//"):
            hint = f"of a URL too the kind comes first, as in {text.KIND.name}:{written}; "
        raise ValueError(f"source {written!r}: unknown kind {name!r}; {hint}kinds: {', '.join(KINDS)}")
    if not pattern and not has_default:
        raise ValueError(f"source {written!r}: nothing after the colon; write {name}:glob, e.g. {name}:{kind.example}")
    return Source(name, pattern or kind.default_pattern or "")


def likely_kind(path: str) -> str:
    """The kind whose files usually have a name like this one."""
    fitting = (
        kind.name for kind in KINDS.values() if kind.folder_names != ("*",) and has_name(path, kind.folder_names)
    )
    return next(fitting, text.KIND.name)


def source_files(source: Source, exclude: Sequence[str] = (), *, check: bool = True) -> list[SourceFile]:
    """The files of a source, in order, but those that a glob of `exclude` matches.

    Raises ValueError when there are none, with where they can be had, or all of them are empty, and, unless `check` is
    false, for files of another kind.
    """
    kind = KINDS[source.kind]
    if kind.find:
        return kind.find(source)
    pattern, field = _glob_and_field(source)
    try:
        found = matching_files(pattern, kind.folder_names, exclude)
    except NoFilesError as error:
        hint = f"{field!r} was taken for the field (if it is none, add :{DEFAULT_FIELD})" if field else ""
        example = f"write {likely_kind(error.example)}:{error.example}" if error.example else ""
        advice = kind.where_from or where_books_are(source.pattern)
        message = "; ".join(filter(None, (str(error), example, hint, advice)))
        raise ValueError(f"source {source}: {message}") from None
    if not any(found.values()):
        raise ValueError(f"source {source}: no text, every file is empty ({len(found)}, e.g. {next(iter(found))})")
    feature = "" if field == DEFAULT_FIELD else field
    files = [
        SourceFile(source.kind, path, feature=feature, listed=size if is_remote(path) else None)
        for path, size in found.items()
    ]
    if check and kind.check:
        failures = [error for file in files if (error := _refusal(kind.check, file))]
        if failures:
            more = f" (and {len(failures) - 1} more files)" if len(failures) > 1 else ""
            raise ValueError(f"{failures[0]}{more}")
    return files


def _refusal(check: Callable[[SourceFile], None], file: SourceFile) -> str:
    try:
        check(file)
    except ValueError as error:
        return str(error)
    return ""


def _glob_and_field(source: Source) -> tuple[str, str]:
    """The parts of `GLOB[:FIELD]`, the field '' if there is none. A glob that ends like one is written with `:text`."""
    found = _FIELD.fullmatch(source.pattern) if KINDS[source.kind].has_fields else None
    return (found["glob"], found["field"]) if found else (source.pattern, "")


def read_documents(file: SourceFile, counts: ReadCounts | None = None, longest: int = 0) -> Iterator[Document]:
    """Stream the documents of a file in bounded memory, long ones in parts (see `assemble`), adding to `counts`.

    With `longest`, several documents are made of one that has more characters (see `divided`).
    Raises UnreadableFileError naming file and offset of anything that is not text of the file's kind.
    """
    kind = KINDS[file.kind]
    assert kind.read is not None, f"{file.kind} has no text: require_text was not called"
    counts = ReadCounts() if counts is None else counts
    try:
        paragraphs = kind.read(file, counts)
        if longest:
            paragraphs = divided(paragraphs, longest, counts)
        yield from assemble(paragraphs, counts, sentence_per_line=kind.sentence_per_line)
    except UnreadableFileError:
        raise
    except ValueError as error:
        raise UnreadableFileError(str(error)) from None


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
    if not file.members:
        return sha256_of_file(file.path)
    return hashlib.sha256(b"".join(bytes.fromhex(sha256_of_file(path)) for path in file.members)).hexdigest()
