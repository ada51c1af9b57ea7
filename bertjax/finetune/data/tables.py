"""Tables: rows and examples of CSV, TSV, JSON Lines, JSON and Parquet.

CSV has the usual quoting, and commas, semicolons, tabs or bars between fields. TSV has no quoting, as in GLUE: a
quotation mark is text, and a tab or line end always ends a field. JSON is a list of objects, or an object that maps ids
to objects. All but Parquet may be compressed.
"""

from __future__ import annotations

import csv
import itertools
import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.finetune.data.examples import SPLIT_NAMES, TextExample, missing, parse_number, split_file
from bertjax.storage.json_documents import checked, parse_json
from bertjax.storage.lines import COMPRESSED, RECORD_CAP, csv_records, read_lines, whole_content
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import parquet

WITHOUT_TABS = str.maketrans("\t\r\n", "   ")  # a field of a .tsv
_DELIMITERS = ",;\t|"  # of a CSV
_GUESSED_FROM = 50  # lines or rows
_LABEL_NAMES = ("label", "labels", "class", "category", "sentiment", "stars", "rating", "score", "target", "polarity")
ROW_KEY = "row key"  # the column that holds the keys of a JSON object, which are ids

Notify = Callable[[str], object]


class Row(NamedTuple):
    """One row: its file and line for messages, and its values by column; missing optional columns are left out."""

    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """The columns to read from a table."""

    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    header: tuple[str, ...] = ()  # the columns of a CSV or TSV whose first line does not name them
    skips_short: bool = False  # leave out rows with too few fields, and report them


@dataclass(frozen=True)
class Columns:
    """The columns of texts, label and id."""

    text: str = "text"  # for multiple choice the common start
    text_b: str = ""  # the second text of a pair
    label: str = "label"  # "": examples have no labels, as in training on pairs
    id: str = ""  # "": ids are numbers from 0, or the keys of a JSON object
    ends: tuple[str, ...] = ()  # for multiple choice: a column per end, or one column with lists of ends

    @property
    def texts(self) -> tuple[str, ...]:
        """All columns of text."""
        return tuple(filter(None, (self.text, self.text_b, *self.ends)))


class MissingColumnError(ValueError):
    """A table lacks a column; `names` are the existing columns."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        """Add general advice to `message`."""
        super().__init__(f"{message}; name one of them")
        self.message, self.names = message, tuple(names)


def read_split_of_table(
    columns: Columns, data: Path, split: str, notify: Notify, *, regression: bool = False
) -> list[TextExample]:
    """Read a split from a file, or from the file in a folder that is named after the split, in any format.

    Raises ValueError as `read_table` does, and MissingSplitError if there is no such file.
    """
    names = SPLIT_NAMES.get(split, (split,))
    path = data if data.is_file() else split_file(data, names, TABLE_SUFFIXES)
    if path is None:
        raise missing(data, split, [f"{names[0]}{suffix}" for suffix in TABLE_SUFFIXES])
    return read_table(path, columns, notify, regression=regression, labelled=split != "test")


def read_table(
    path: Path, columns: Columns, notify: Notify, *, regression: bool = False, labelled: bool = True
) -> list[TextExample]:
    """Read the examples of a table, in order; unless `labelled`, a missing label is None.

    Raises ValueError naming file and line as `read_rows` does, and for a value that is not a text, a missing label, a
    wrong number of choices, or with `regression` a label that is not a number.
    """
    label = (columns.label,) if columns.label else ()
    selection = Selection(
        columns.texts + (label if labelled else ()) + ((columns.id,) if columns.id else ()),
        (ROW_KEY,) if labelled else (ROW_KEY, *label),
    )
    try:
        return list(
            parse_examples(read_rows(path, selection, notify), columns, regression=regression, labelled=labelled)
        )
    except MissingColumnError as error:
        if columns.ends:
            raise
        texts, label_column = likely_columns(path, error.names, columns.texts, columns.label if labelled else "")
        advice = [f"--text {shlex.join(texts)}"] if texts != columns.texts else []
        advice += [f"--label {shlex.quote(label_column)}"] if label_column != columns.label and label_column else []
        if not advice:
            raise
        raise ValueError(f"{error.message}; give {' '.join(advice)}") from None


def likely_columns(path: Path, names: Sequence[str], texts: Sequence[str], label: str) -> tuple[tuple[str, ...], str]:
    """Guess the columns of text and of the label ("": none) in a table with the columns `names`.

    Text columns have the longest values in the first rows; the label column has a usual name, or the fewest distinct
    values. Columns that exist are kept.
    """
    try:
        rows = [*itertools.islice(read_rows(path, Selection((), tuple(names)), lambda notice: None), _GUESSED_FROM)]
    except ValueError:  # another row is malformed
        return tuple(texts), label
    values = {name: [str(row.values.get(name, "")) for row in rows] for name in names}
    free = [name for name in names if name not in (*texts, label) and name != ROW_KEY]
    by_length = sorted(free, key=lambda name: -sum(map(len, values[name])))
    missing = [name for name in texts if name not in names]
    chosen = sorted(by_length[: len(missing)], key=names.index)
    if len(chosen) < len(missing):
        return tuple(texts), label
    text_columns = tuple(name if name in names else chosen.pop(0) for name in texts)
    if label and label not in names:
        rest = [name for name in free if name not in text_columns]
        rest.sort(key=lambda name: (name.lower() not in _LABEL_NAMES, len({*values[name]})))
        label = rest[0] if rest else ""
    return text_columns, label


def parse_examples(
    rows: Iterator[Row], columns: Columns, *, regression: bool = False, labelled: bool = True
) -> Iterator[TextExample]:
    """Make an example of each row. Raises ValueError as `read_table` does."""
    choices = len(columns.ends) if len(columns.ends) > 1 else 0
    for number, (where, values) in enumerate(rows):
        texts = _texts(where, values, columns)
        choices = choices or len(texts) - 1
        if columns.ends and (len(texts) != 1 + choices or choices < 2 or not all(texts[1:])):
            count = sum(1 for text in texts[1:] if text)
            raise ValueError(f"{where}: {count} choices, but every example must have {max(choices, 2)}; correct it")
        name = _cell(where, values, columns.id) if columns.id else values.get(ROW_KEY, str(number))
        label: str | float | None = _cell(where, values, columns.label)
        if label == "":
            if labelled and columns.label:
                raise ValueError(f"{where}: no label in column {columns.label!r}; every example needs one")
            label = None
        elif regression:
            label = parse_number(where, label)
        yield TextExample(where, name, texts, label)


def read_rows(path: Path, selection: Selection, notify: Notify, suffix: str = "") -> Iterator[Row]:
    """Read the rows of a table, in order, without blank lines. `suffix` overrides the suffix of the file's name.

    Raises ValueError naming the file, and line or record, for damaged content, a missing column, a row with more or
    fewer fields than columns, and a table without rows.
    """
    suffix = suffix or table_suffix(path)
    if suffix not in TABLE_SUFFIXES:
        raise ValueError(f"{path}: unsupported table format; give a file ending in {', '.join(TABLE_SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    empty = True
    for row in _READERS[suffix](path, selection, notify):
        empty = False
        yield row
    if empty:
        raise ValueError(f"{path}: the file is empty; it needs at least one row")


def table_suffix(path: Path) -> str:
    """Return the suffix of a file's format, without compression: `.csv` for `train.csv.gz`."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _read_csv(path: Path, selection: Selection, notify: Notify) -> Iterator[Row]:
    lines = (f"{line}\n" for line in _lines(path, notify))
    first_lines = [*itertools.islice(lines, _GUESSED_FROM)]
    delimiter = "," if selection.header else _delimiter(first_lines, selection)
    return _name_fields(
        path, csv_records(path, itertools.chain(first_lines, lines), delimiter=delimiter), selection, notify
    )


def _delimiter(lines: Sequence[str], selection: Selection) -> str:
    """Find the first delimiter under which the header has the wanted columns, or else the likeliest one."""
    for delimiter in _DELIMITERS:
        header = next((fields for fields in csv.reader(lines, delimiter=delimiter) if fields), [])
        if {*(selection.columns or selection.optional)} <= {name.strip() for name in header}:
            return delimiter
    try:
        return csv.Sniffer().sniff("".join(lines), _DELIMITERS).delimiter
    except csv.Error:
        return ","


def _read_tsv(path: Path, selection: Selection, notify: Notify) -> Iterator[Row]:
    lines = enumerate(_lines(path, notify), 1)
    return _name_fields(path, ((number, line.split("\t") if line else []) for number, line in lines), selection, notify)


def _name_fields(
    path: Path, rows: Iterator[tuple[int, list[str]]], selection: Selection, notify: Notify
) -> Iterator[Row]:
    """Name the fields of rows; the first row names the columns unless `selection.header` does."""
    rows = ((number, fields) for number, fields in rows if fields)
    header = selection.header
    if not header:
        number, first = next(rows, (1, []))
        if not first:
            return
        header = tuple(name.strip() for name in first)
        _require(f"{path}:{number}", selection.columns, header)
    for name in (*selection.columns, *selection.optional):
        if header.count(name) > 1:
            raise ValueError(f"{path}: {header.count(name)} columns are named {name!r}; rename all but one")
    indices = {name: header.index(name) for name in (*selection.columns, *selection.optional) if name in header}
    short: list[str] = []
    for number, fields in rows:
        where = f"{path}:{number}"
        if len(fields) == len(header):
            yield Row(where, {name: fields[index] for name, index in indices.items()})
        elif selection.skips_short and len(fields) < len(header):
            short.append(where)
        else:
            raise ValueError(
                f"{where}: {len(fields)} fields for {len(header)} columns ({_join_names(header)}); correct the row"
            )
    if short:
        notify(f"{path}: left out {len(short):,} rows with fewer fields than columns, the first at {short[0]}")


def _read_json_lines(path: Path, selection: Selection, notify: Notify) -> Iterator[Row]:
    first = True
    for number, line in enumerate(_lines(path, notify), 1):
        if line and not line.isspace():
            where = f"{path}:{number}"
            yield _row(where, parse_json(line, where, remedy="every line must be one JSON object"), selection, first)
            first = False


def _read_json(path: Path, selection: Selection, notify: Notify) -> Iterator[Row]:
    content = whole_content(str(path)).strip() or b"[]"
    shape, remedy = list[Any] | dict[str, Any], "the file must be a list of objects"
    records = parse_json(content, str(path), shape, remedy=remedy, most_bytes=sys.maxsize)
    keyed = records.items() if isinstance(records, dict) else enumerate(records, 1)
    for number, (key, record) in enumerate(keyed):
        where = f"{path}: record {key!r}"
        checked(record, dict[str, Any], where, remedy=remedy)
        yield _row(where, {ROW_KEY: key} | record if isinstance(key, str) else record, selection, not number)


def _row(where: str, record: dict[str, Any], selection: Selection, first: bool) -> Row:
    if first:
        _require(where, selection.columns, record)
    elif absent := [name for name in selection.columns if name not in record]:
        raise ValueError(f"{where}: the row has no {absent[0]!r}, unlike earlier rows; add it, or remove the row")
    return Row(where, {name: record[name] for name in (*selection.columns, *selection.optional) if name in record})


def _read_parquet(path: Path, selection: Selection, notify: Notify) -> Iterator[Row]:
    columns = parquet.column_names(str(path))
    _require(str(path), selection.columns, columns)
    names = [name for name in (*selection.columns, *selection.optional) if name in columns]
    for number, values in enumerate(parquet.records(str(path), names), 1):
        yield Row(f"{path}: record {number}", values)


def _require(where: str, columns: Sequence[str], existing: Sequence[str] | dict[str, Any]) -> None:
    for name in columns:
        if name not in existing:
            raise MissingColumnError(f"{where}: no column {name!r}; there are {_join_names(existing)}", [*existing])


def _join_names(names: Sequence[str] | dict[str, Any]) -> str:
    names = [name for name in names if name != ROW_KEY]
    return ", ".join(repr(name[:80]) for name in names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"


def _lines(path: Path, notify: Notify) -> Iterator[str]:
    def refuse(number: int) -> None:
        raise ValueError(f"{path}:{number}: a line of more than {RECORD_CAP >> 20} MiB; is it a table?")

    counts = ReadCounts()
    yield from read_lines(str(path), refuse, RECORD_CAP, counts)
    if counts.replaced_characters:
        notify(f"{path}: {counts.replaced_characters:,} characters are not UTF-8; each is read as U+FFFD")


def _texts(where: str, values: dict[str, Any], columns: Columns) -> tuple[str, ...]:
    texts: list[str] = []
    for name in columns.texts:
        value = values[name]
        parts = value if isinstance(value, list) and columns.ends == (name,) else [value]
        for part in parts:
            if part is None and name in columns.ends:
                part = ""  # a missing choice; `parse_examples` checks the number of choices
            if part is None:
                raise ValueError(f"{where}: the row has no text in column {name!r}; write one, or remove the row")
            if not isinstance(part, str):
                raise ValueError(f"{where}: column {name!r} is {_json_kind(part)}, not a text; name another column")
            texts.append(part)
    return tuple(texts)


def _cell(where: str, values: dict[str, Any], name: str) -> str:
    """Return a label or id as stripped text; "" if it is missing."""
    value = values.get(name)
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {name!r} is {_json_kind(value)}, not a text or number; name another column")
    return value.strip()


def _json_kind(value: object) -> str:
    """Name the type of a value for messages."""
    return "missing" if value is None else f"a {type(value).__name__}"


_READERS: dict[str, Callable[[Path, Selection, Notify], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".arrow": _read_parquet,
}
TABLE_SUFFIXES = tuple(_READERS)
