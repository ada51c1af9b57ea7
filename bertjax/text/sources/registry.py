"""Registry of source kinds, with functions for sources of any kind: find files, read documents."""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from bertjax.config.registry import Registry
from bertjax.storage.lean_import import require_package
from bertjax.storage.remote import content_tag, is_remote
from bertjax.storage.sums import sha256_of_file
from bertjax.storage.utf8 import ReadCounts, UnreadableFileError
from bertjax.text.documents import Document, assemble, divide_works, end_last
from bertjax.text.sources import (
    csv_rows,
    docs,
    docx,
    fasta,
    folder,
    generated,
    generated_proteins,
    hf,
    html,
    ids,
    jsonl,
    lines,
    novels,
    parquet,
    pdf,
    smiles,
    text,
    tfds,
    tfrecord,
    wikiextractor,
)
from bertjax.text.sources.globs import NoFilesError, books_advice, has_name, is_excluded, is_folder, matching_files
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind, split_field
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
    generated_proteins.KIND,
    tfds.KIND,
    wikipedia.KIND,
    parquet.KIND,
    hf.KIND,
    html.KIND,
    pdf.KIND,
    docx.KIND,
    fasta.KIND,
    smiles.KIND,
    ids.KIND,
    folder.KIND,
    tfrecord.KIND,
)
KINDS = Registry("sources", {kind.name: kind for kind in _ALL}, SourceKind)
_COMPRESSION = 4  # bytes of text per byte of a compressed file
_REQUESTS = 16  # to object storage, at a time


def parse_sources(written: Sequence[str]) -> tuple[Source, ...]:
    """Parse `data.sources`. Raises ValueError like `parse_source`, and for files that an unquoted glob expanded to."""
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
    """Parse `kind:pattern`, the bare name of a kind with a default pattern, or a folder of files.

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
                f"source {written!r}: a kind of source, but also a folder here; write {folder.KIND.name}:{written} "
                f"for the files of the folder, or {written}: for the source {written}"
            )
        if is_local_folder:
            return Source(folder.KIND.name, written)
        if not has_default:
            missing = "" if os.path.exists(written) else "there is no such folder or file, and "
            raise ValueError(
                f"source {written!r}: {missing}no kind; write kind:glob, e.g. {likely_kind(written)}:{written}; "
                f"kinds: {', '.join(KINDS)}"
            )
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
    """The kind of source that a file's name suggests."""
    return _kind_by_name(path) or text.KIND.name


def _kind_by_name(path: str) -> str:
    kinds = (kind.name for kind in KINDS.values() if kind.folder_names != ("*",) and has_name(path, kind.folder_names))
    return next(kinds, "")


class FoundFiles(NamedTuple):
    """The files of a source in order, and those that were left out, each with the reason."""

    files: list[SourceFile]
    skipped: list[tuple[str, str]]


def source_files(source: Source, exclude: Sequence[str] = (), *, check: bool = True) -> list[SourceFile]:
    """The files of a source, in order. Raises ValueError like `find_files`."""
    return find_files(source, exclude, check=check).files


def find_files(source: Source, exclude: Sequence[str] = (), *, check: bool = True) -> FoundFiles:
    """Find the files of a source, except those that a glob of `exclude` matches.

    Leaves out empty text files, and files of a folder whose names do not suggest a kind. Raises ValueError if there are
    no files, with advice, or all are empty, for a missing library and, if `check` is true, for files of another kind.
    """
    kind = KINDS[source.kind]
    skipped: list[tuple[str, str]] = []
    if kind.find:
        matches = [file for file in kind.find(source) if not is_excluded(file.path, exclude)]
    else:
        matches, others = _matching_files(source, exclude)
        skipped = [(path, f"its name is not one of {', '.join(kind.folder_names)}") for path in others]
    if kind.is_mixed:
        matches = [replace(file, kind=file.kind or _kind_by_name(file.path)) for file in matches]
    files = []
    for file in matches:
        if reason := _reason_to_skip(file, kind):
            skipped.append((file.path, reason))
        else:
            files.append(file)
    if matches and not files:
        raise ValueError(
            f"source {source}: no text, every file is empty or of an unknown kind ({len(matches)}, e.g. "
            f"{matches[0].path}: {skipped[-1][1]})"
        )
    for name in dict.fromkeys(file.kind for file in files if kind.is_mixed or kind.find is None):
        if needs := KINDS[name].needs:
            path = next(file.path for file in files if file.kind == name)
            try:
                require_package(*needs, path)
            except ModuleNotFoundError:
                raise ValueError(f"{path}: reading it requires {needs[0]}; pip install {needs[1]}") from None
    if check:
        checks = [(KINDS[file.kind].check, file) for file in files]
        with ThreadPoolExecutor(_REQUESTS if any(is_remote(file.path) for file in files) else 1) as threads:
            failures = [error for error in threads.map(_refusal, checks) if error]
        if failures:
            more = f" (and {len(failures) - 1} more files)" if len(failures) > 1 else ""
            raise ValueError(f"{failures[0]}{more}")
    return FoundFiles(files, skipped)


def _reason_to_skip(file: SourceFile, kind: SourceKind) -> str:
    name = os.path.basename(file.path)
    if kind.is_mixed and name.startswith("~$"):
        return "lock file of an open document"
    if not file.kind:
        ending = os.path.splitext(name)[1]
        return f"unknown suffix {ending}" if ending else "a name without a suffix"
    if KINDS[file.kind].takes_encoding or kind.is_mixed:
        return "empty file" if not file.members and file.size == 0 else ""
    return ""


def _matching_files(source: Source, exclude: Sequence[str]) -> tuple[list[SourceFile], list[str]]:
    """Find the files that the glob of a source matches, and the other files of a folder."""
    kind = KINDS[source.kind]
    pattern, field = split_field(source.pattern) if kind.has_fields else (source.pattern, "")
    try:
        sizes, others = matching_files(pattern, kind.folder_names, exclude)
    except NoFilesError as error:
        hint = f"{field!r} was taken for the field (if it is not one, add :{DEFAULT_FIELD})" if field else ""
        example = f"write {likely_kind(error.example)}:{error.example}" if error.example else ""
        advice = kind.where_from or books_advice(source.pattern)
        message = "; ".join(filter(None, (str(error), example, hint, advice)))
        raise ValueError(f"source {source}: {message}") from None
    if not any(sizes.values()):
        raise ValueError(f"source {source}: no text, every file is empty ({len(sizes)}, e.g. {next(iter(sizes))})")
    feature = "" if field == DEFAULT_FIELD else field
    return [
        SourceFile("" if kind.is_mixed else kind.name, path, feature=feature, listed=size if is_remote(path) else None)
        for path, size in sizes.items()
    ], others


def _refusal(case: tuple[Callable[[SourceFile], None] | None, SourceFile]) -> str:
    check, file = case
    try:
        if check:
            check(file)
    except ValueError as error:
        return str(error)
    return ""


def read_documents(file: SourceFile, counts: ReadCounts | None = None, longest: int = 0) -> Iterator[Document]:
    """Stream the documents of a file in bounded memory, long ones in parts (see `assemble`), adding to `counts`.

    With `longest`, documents of more characters are divided into several (see `divide_works`). Raises
    UnreadableFileError naming file and offset of anything that is not text of the file's kind.
    """
    kind = KINDS[file.kind]
    assert kind.read is not None, f"{file.kind} has no text: require_text was not called"
    own = ReadCounts()
    try:
        paragraphs = end_last(kind.read(file, own))
        if longest:
            paragraphs = divide_works(paragraphs, longest, own)
        yield from assemble(paragraphs, own, sentence_per_line=kind.sentence_per_line, is_sequence=kind.is_sequence)
    except UnreadableFileError:
        raise
    except ValueError as error:
        raise UnreadableFileError(str(error)) from None
    finally:
        if counts is not None:
            counts.add(own)


def is_text(source: Source) -> bool:
    """Whether a source holds text rather than rows of ids."""
    return not KINDS[source.kind].no_text


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
    """Raise ValueError if a source has no document; `counts` are the sums over its files."""
    if not counts.documents:
        raise ValueError(
            f"source {source}: no text in it ({counts.empty_documents} documents, all empty); "
            f"is it really of kind {source.kind}?"
        )


def digest(file: SourceFile) -> str:
    """SHA-256 (hex) of a file's bytes, or of the digests of its members in order.

    For a remote columnar file without a known digest, the storage's tag is hashed: its content would mean reading every
    column.
    """
    if file.digest:
        return file.digest
    if is_remote(file.path) and KINDS[file.kind].is_columnar:
        return content_tag(file.path)
    if not file.members:
        return sha256_of_file(file.path)
    return hashlib.sha256(b"".join(bytes.fromhex(sha256_of_file(path)) for path in file.members)).hexdigest()
