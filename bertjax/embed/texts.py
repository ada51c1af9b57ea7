"""Texts to encode, read from files or standard input as a stream."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from bertjax.finetune.data.tables import MissingColumnError, Selection, likely_columns, read_rows
from bertjax.storage.lines import COMPRESSED, RECORD_CAP, read_lines
from bertjax.storage.remote import is_remote
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import parquet
from bertjax.text.sources.jsonl import json_records, text_in
from bertjax.text.sources.registry import KINDS
from bertjax.text.sources.source import DEFAULT_FIELD, SourceFile, SourceKind

STANDARD_INPUT = "-"

_JSON, _CSV, _TABLES = (".jsonl", ".ndjson"), (".csv", ".tsv"), (".parquet", ".arrow")

Reader = Callable[[ReadCounts], Iterator[str]]


def read_texts(paths: Sequence[str], field: str | None, counts: ReadCounts) -> Iterator[str]:
    """Read the texts of files, in order: `field` of each record of a .jsonl, .csv, .tsv or .parquet, else lines.

    In a file of sequences (.fasta, .fa, ...) each record is a text. Files may be compressed (.gz .bz2 .xz .zst); `-` is
    standard input, in JSON Lines if `field` is given. A blank line is an empty text, so that text n is line n. Raises
    ValueError naming file and line of unreadable content, and for a `field` of a file without fields.
    """
    for reader in [_choose_reader(path, field) for path in paths]:
        yield from reader(counts)


def count_texts(paths: Sequence[str], field: str | None) -> int | None:
    """Count texts by reading the files once; None if one of them can be read only once (a pipe).

    Raises ValueError as `read_texts` does, so that bad input is refused before the work begins.
    """
    if not all(is_remote(path) or Path(path).is_file() for path in paths):
        return None
    return sum(1 for _ in read_texts(paths, field, ReadCounts()))


def has_json(path: str, field: str | None) -> bool:
    """Check whether a file is JSON Lines: by its suffix, for standard input by whether there is a field."""
    return _bare(path).endswith(_JSON) or (path == STANDARD_INPUT and bool(field))


def source_of_texts(path: str) -> str:
    """Return the file to open. Raises ValueError if it does not exist."""
    if path == STANDARD_INPUT:
        return "/dev/stdin"
    if not is_remote(path) and not Path(path).exists():
        raise ValueError(f"{path}: no such file; correct the path, or give - for standard input")
    if not is_remote(path) and Path(path).is_dir():
        raise ValueError(f"{path}: a folder; name files in it, such as {Path(path) / '*.txt'}")
    return path


def _choose_reader(path: str, field: str | None) -> Reader:
    """Choose the reader of a file by its suffix. Raises ValueError if it does not exist or does not accept `field`."""
    source = source_of_texts(path)
    if _bare(path).endswith(_TABLES):
        return lambda counts: parquet.texts(source, counts, field or DEFAULT_FIELD)
    if _bare(path).endswith(_CSV):
        return lambda counts: _column_texts(source, field or DEFAULT_FIELD)
    if has_json(path, field):
        return lambda counts: (
            text_in(record, field or DEFAULT_FIELD, where, counts) for where, record in json_records(source, counts)
        )
    records = _find_record_kind(path)
    if field:
        raise ValueError(
            f"{path}: --field {field} is for {', '.join((*_JSON, *_CSV, *_TABLES))}, but this file has a text per line"
        )
    if records is not None:
        return lambda counts: _join_records(records, source, counts)
    return partial(read_lines, source, partial(_refuse, source), RECORD_CAP)


def _column_texts(path: str, column: str) -> Iterator[str]:
    """Yield the values of a column of a CSV or TSV. Raises ValueError for a missing column, naming a likely one."""
    if is_remote(path):
        raise ValueError(f"{path}: tables are read from local files; copy it to this machine")
    try:
        for row in read_rows(Path(path), Selection((column,)), warnings.warn):
            yield row.values[column]
    except MissingColumnError as error:
        (likely,), _ = likely_columns(Path(path), error.names, (column,), "")
        advice = f"; give --column {shlex.quote(likely)}" if likely != column else ""
        raise ValueError(f"{error.message}{advice}") from None


def _find_record_kind(path: str) -> SourceKind | None:
    """Find the kind of source with sequences as records by a file's name; None for other files."""
    name = Path(_bare(path)).name
    sequences = (kind for kind in KINDS.values() if kind.is_sequence and kind.read is not None)
    kinds = (kind for kind in sequences if kind.folder_names != SourceKind.folder_names)
    return next((kind for kind in kinds if any(fnmatch(name, pattern) for pattern in kind.folder_names)), None)


def _join_records(kind: SourceKind, path: str, counts: ReadCounts) -> Iterator[str]:
    """Yield the letters of each record, which may come in pieces; "" for an empty record."""
    assert kind.read is not None
    pieces: list[str] = []
    for piece in kind.read(SourceFile(kind.name, path), counts):
        if piece is not None:
            pieces.append(piece)
        else:
            yield "".join(pieces)
            pieces = []


def _bare(path: str) -> str:
    """Remove the suffix of a compressed file."""
    for suffix in COMPRESSED:
        path = path.removesuffix(suffix)
    return path


def _refuse(path: str, number: int) -> None:
    raise ValueError(
        f"{path}, line {number}: a text of more than {RECORD_CAP >> 20} MiB; does the file have one text per line?"
    )
