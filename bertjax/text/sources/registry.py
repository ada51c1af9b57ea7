"""The kinds of source, and functions for sources of any kind: find files, read documents."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bertjax.config.plugins import Registry
from bertjax.storage.remote import content_tag, is_remote
from bertjax.storage.sums import sha256_of_file
from bertjax.storage.utf8 import ReadCounts, UnreadableFileError
from bertjax.text.documents import Document, assemble, divided
from bertjax.text.sources import (
    csv_rows,
    docs,
    generated,
    jsonl,
    lines,
    novels,
    parquet,
    text,
    tfds,
    tfrecord,
    wikiextractor,
)
from bertjax.text.sources.globs import NoFilesError, books_advice, has_name, is_folder, matching_files
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind
from bertjax.text.sources.wikipedia import dump as wikipedia

_ALL = (
    text.KIND,
    lines.KIND,
    jsonl.KIND,
    csv_rows.KIND,
    wikiextractor.KIND,
    docs.KIND,
    novels.KIND,
    generated.KIND,
    tfds.KIND,
    wikipedia.KIND,
    parquet.KIND,
    tfrecord.KIND,
)
KINDS = Registry("sources", {kind.name: kind for kind in _ALL}, SourceKind)
# Unlike a file name, a field has no folder, suffix or wildcard.
_FIELD = re.compile(r"(?P<glob>.+):(?P<field>[^:./*?\[\]]+)", re.DOTALL)
_DATA_SET = re.compile(r"(?P<name>[\w.-]+/[\w.-]+(?:@[^/:]+)?)(?:/(?P<path>[^:]*))?(?P<field>:.*)?")
_COMPRESSION = 4  # bytes of text per byte of a compressed file
_REQUESTS = 16  # to object storage, at a time


def hub_data_set(pattern: str) -> Source:
    """The `parquet` source of the Hub data set `ORG/NAME[/GLOB][:FIELD]`; without a glob, of all its Parquet files.

    Raises ValueError for another form.
    """
    match = _DATA_SET.fullmatch(pattern)
    if not match:
        raise ValueError(
            f"source hf:{pattern}: write hf:ORG/NAME, as in hf:wikimedia/wikipedia/20231101.en/*, or append a column: "
            "hf:ORG/NAME:COLUMN"
        )
    glob = match["path"] or "**/*.parquet"
    return Source(parquet.KIND.name, f"hf://datasets/{match['name']}/{glob}{match['field'] or ''}")


# Aliases: a name -> the source of another kind that its pattern stands for.
ALIASES: dict[str, Callable[[str], Source]] = {"hf": hub_data_set}


def parse_sources(written: Sequence[str]) -> tuple[Source, ...]:
    """Parse `data.sources`. Raises ValueError like `parse_source`, and for the files of an unquoted glob."""
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
    """Parse `kind:pattern`, the bare name of a kind with a default pattern, or a folder of texts.

    Raises ValueError for an unknown kind, with the nearest one, a missing pattern, or a name that is both a kind and a
    folder.
    """
    name, colon, pattern = written.partition(":")
    kind = KINDS.get(name)
    has_default = kind is not None and kind.default_pattern is not None
    if not colon:
        is_local_folder = bool(written) and is_folder(written)
        if has_default and is_local_folder:
            raise ValueError(
                f"source {written!r}: a kind of source, and also a folder here; write {text.KIND.name}:{written}/** "
                f"for the files of the folder, or {written}: for the source {written}"
            )
        if is_local_folder:
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
            hint = f"the kind comes first, also before a URL: {text.KIND.name}:{written}; "
        raise ValueError(f"source {written!r}: unknown kind {name!r}; {hint}kinds: {', '.join(KINDS)}")
    if not pattern and not has_default:
        raise ValueError(f"source {written!r}: nothing after the colon; write {name}:glob, e.g. {name}:{kind.example}")
    return Source(name, pattern or kind.default_pattern or "")


def likely_kind(path: str) -> str:
    """The kind whose files usually have such a name."""
    fitting = (
        kind.name for kind in KINDS.values() if kind.folder_names != ("*",) and has_name(path, kind.folder_names)
    )
    return next(fitting, text.KIND.name)


def source_files(source: Source, exclude: Sequence[str] = (), *, check: bool = True) -> list[SourceFile]:
    """The files of a source, in order, except those that a glob of `exclude` matches.

    Raises ValueError if there are none, with advice, or all are empty, and, if `check` is true, for files of another
    kind.
    """
    kind = KINDS[source.kind]
    if kind.find:
        return kind.find(source)
    pattern, field = _glob_and_field(source)
    try:
        sizes = matching_files(pattern, kind.folder_names, exclude)
    except NoFilesError as error:
        hint = f"{field!r} was taken for the field (if it is not one, add :{DEFAULT_FIELD})" if field else ""
        example = f"write {likely_kind(error.example)}:{error.example}" if error.example else ""
        advice = kind.where_from or books_advice(source.pattern)
        message = "; ".join(filter(None, (str(error), example, hint, advice)))
        raise ValueError(f"source {source}: {message}") from None
    if not any(sizes.values()):
        raise ValueError(f"source {source}: no text, every file is empty ({len(sizes)}, e.g. {next(iter(sizes))})")
    feature = "" if field == DEFAULT_FIELD else field
    files = [
        SourceFile(source.kind, path, feature=feature, listed=size if is_remote(path) else None)
        for path, size in sizes.items()
    ]
    if check and kind.check:
        with ThreadPoolExecutor(_REQUESTS if any(is_remote(file.path) for file in files) else 1) as threads:
            failures = [error for error in threads.map(partial(_refusal, kind.check), files) if error]
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
    """Split `GLOB[:FIELD]`, the field '' by default. A glob that ends like a field is written with `:text`."""
    match = _FIELD.fullmatch(source.pattern) if KINDS[source.kind].has_fields else None
    return (match["glob"], match["field"]) if match else (source.pattern, "")


def read_documents(file: SourceFile, counts: ReadCounts | None = None, longest: int = 0) -> Iterator[Document]:
    """Stream the documents of a file in bounded memory, long ones in parts (see `assemble`), adding to `counts`.

    With `longest`, documents of more characters are divided into several (see `divided`). Raises UnreadableFileError
    naming file and offset of anything that is not text of the file's kind.
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
    """Whether a source holds text rather than rows of ids."""
    return KINDS[source.kind].read is not None


def require_text(sources: Iterable[Source]) -> None:
    """Raise ValueError for a source that holds rows instead of text."""
    for source in sources:
        if not is_text(source):
            raise ValueError(f"source {source}: {KINDS[source.kind].no_text}")


def text_bytes(file: SourceFile) -> int:
    """Estimate the bytes of text in a file from its size."""
    return file.size * (_COMPRESSION if file.path.endswith(KINDS[file.kind].compressed) else 1)


def split_file(file: SourceFile, count: int) -> list[SourceFile]:
    """Split a file into about `count` parts for parallel reading, if its kind can be split."""
    split = KINDS[file.kind].split
    return split(file, count) if split and count > 1 else [file]


def require_documents(source: Source, counts: ReadCounts) -> None:
    """Raise ValueError if the whole source has no document; `counts` are the sums over its files."""
    if not counts.documents:
        raise ValueError(
            f"source {source}: no text in it ({counts.empty_documents} documents, all empty); "
            f"is it really of kind {source.kind}?"
        )


def digest(file: SourceFile) -> str:
    """SHA-256 (hex) of a file's bytes; of several files, that of their digests in order.

    Of a remote file in columns it is that of the storage's tag, since hashing would read all the columns.
    """
    if is_remote(file.path) and KINDS[file.kind].is_columnar:
        return content_tag(file.path)
    if not file.members:
        return sha256_of_file(file.path)
    return hashlib.sha256(b"".join(bytes.fromhex(sha256_of_file(path)) for path in file.members)).hexdigest()
