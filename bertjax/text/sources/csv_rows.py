"""The `csv` source: tables with a header, and a document in one column of each row.

The header determines the separator: a comma, a semicolon, a tab or a bar. Fields may be quoted, except in `.tsv` files,
where a quotation mark is an ordinary character.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

from bertjax.storage.lines import RECORD_CAP, csv_records, read_lines
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.globs import has_name
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, SourceFile, SourceKind

_SEPARATORS = ",;\t|"
_SNIFFED = 2000  # characters; sniffing takes quadratic time


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read each row as a document, whose lines are paragraphs.

    Raises ValueError naming file and line for a missing column, a malformed row, a row with another number of fields
    than the header, or a row above `RECORD_CAP` bytes. If such rows are left out, each of their lines counts as a
    record, since a stray quotation mark joins many lines into one row.
    """
    on_bad = file.on_bad_record(counts)
    header, rows = read_table(file, counts, on_bad)
    if not header:
        return
    column = _column(file, header)
    for where, fields in rows:
        record: dict[str, Any] = dict(zip(header, fields, strict=True))
        try:
            if file.spans and file.spans in record:
                record[file.spans] = _spans(record[file.spans], file.spans, where)
            paragraphs = file.record_paragraphs(fields[column], record, where)
        except ValueError as error:
            on_bad(str(error))
        else:
            yield from paragraphs


def read_table(
    file: SourceFile, counts: ReadCounts, on_bad: Callable[..., None]
) -> tuple[list[str], Iterator[tuple[str, list[str]]]]:
    """Return the names of the columns, and for each row its place for messages and a field for each column.

    A row with another number of fields is passed to `on_bad` as a message and a number of lines, and left out. The
    names are empty for an empty file.
    """
    rows = _rows(file, counts, on_bad)
    _, header = next(rows, (1, []))
    header = [name.strip() for name in header]

    def whole_rows() -> Iterator[tuple[str, list[str]]]:
        for line, fields in rows:
            where = f"{file.path}, line {line}"
            if len(fields) == len(header):
                yield where, fields
            else:
                on_bad(
                    f"{where}: {len(fields)} fields, but the header has {len(header)} ({', '.join(header[:20])}); "
                    "correct the row",
                    1 + sum(field.count("\n") for field in fields),
                )

    return header, whole_rows()


def _column(file: SourceFile, header: list[str]) -> int:
    """The position of the column with the text: the requested one, `text`, or the only one."""
    if not file.feature and len(header) == 1:
        return 0
    name = file.feature or DEFAULT_FIELD
    if header.count(name) > 1:
        raise ValueError(f"{file.path}: {header.count(name)} columns {name!r}; rename all but one")
    if name not in header:
        has = ", ".join(header[:20])
        raise ValueError(f"{file.path}: no column {name!r}; it has {has}; name one of them: csv:GLOB:COLUMN")
    return header.index(name)


def _rows(file: SourceFile, counts: ReadCounts, on_bad: Callable[[str, int], None]) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, fields) of each row that is not blank."""

    def refuse(number: int) -> None:
        raise ValueError(f"{file.path}, line {number}: a line of more than {RECORD_CAP >> 20} MiB; is it a table?")

    lines = (f"{line}\n" for line in read_lines(file.path, refuse, RECORD_CAP, counts, encoding=file.encoding))
    header = next((line for line in lines if not line.isspace()), "")
    is_quoted, separator = not has_name(file.path, ("*.tsv",)), "\t"
    if is_quoted:
        try:
            separator = csv.Sniffer().sniff(header[:_SNIFFED], _SEPARATORS).delimiter
        except csv.Error:  # a single column
            separator = ","
    records = csv_records(
        file.path,
        itertools.chain([header], lines),
        on_bad,
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
    )
    return ((number, fields) for number, fields in records if fields)


def _spans(cell: str, field: str, where: str) -> object:
    try:
        return json.loads(cell) if cell.strip() else None
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{where}: column {field!r} is not JSON ({error}); write a list of spans, or nothing"
        ) from None


KIND = SourceKind(
    "csv",
    read,
    example="reviews/*.csv",
    has_fields=True,
    folder_names=("*.csv", "*.tsv"),
    takes_encoding=True,
)
