"""Apply a model to the rows of tables: a folder of Parquet parts with the input's and the model's columns.

A unit is a span of a file: row groups of Parquet, lines of JSON Lines, or a whole CSV file. Any number of processes, on
machines that share the folder, claim units as in the preparation of text. A unit's part appears atomically, so that
every row is in one part, however often a process is killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertjax.run.progress import Progress, duration
from bertjax.storage.files import replacing
from bertjax.storage.json_documents import read_json
from bertjax.storage.lean_import import require_package
from bertjax.storage.remote import is_remote
from bertjax.storage.terminal import first_names
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.claims import Claims
from bertjax.text.corpus import Unit
from bertjax.text.sources import csv_rows, jsonl, parquet
from bertjax.text.sources.line_spans import split_lines
from bertjax.text.sources.registry import KINDS, likely_kind, parse_source, source_files, text_bytes
from bertjax.text.sources.source import SourceFile

if TYPE_CHECKING:
    import pyarrow

_UNITS = 256  # of all files together, about
_SMALLEST, _LARGEST = 1 << 20, 256 << 20  # bytes of text in a unit, about
_WAIT_SECONDS = 2.0  # between checks for units of other processes
_JOB, _CLAIMS = "_job.json", "_claims"  # readers of Parquet folders skip names with a leading underscore

Columns = dict[str, Any]  # name -> a value per row, for `pyarrow.array`
Annotate = Callable[[Sequence[tuple[str, ...]]], Columns]  # from the texts of each row to new columns


class _Table(NamedTuple):
    """Splits files of a kind, and reads a span with all its columns."""

    split: Callable[[SourceFile, int], list[SourceFile]]
    read: Callable[[SourceFile, Sequence[str]], pyarrow.Table]  # of a file, given its text columns


class RowError(ValueError):
    """An error of one of the rows that a model was applied to; `number` is counted from 0."""

    def __init__(self, number: int, message: str) -> None:
        """`message` does not name the row's file."""
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, repr=False)
class Annotated:
    """The work of this process on a finished folder of parts."""

    folder: Path
    parts: int
    written: int  # parts by this process
    rows: int  # in those
    seconds: float

    def __repr__(self) -> str:
        rate = self.rows / max(self.seconds, 1e-9)
        others = f" ({self.parts - self.written:,} of them by other processes or earlier runs)" * (
            self.written < self.parts
        )
        return (
            f"{self.parts:,} parts in {self.folder}{others}\n"
            f"{self.rows:,} rows in {duration(self.seconds)}, {rate:,.0f} rows/s"
        )


def annotate_tables(
    names: Sequence[str],
    columns: Sequence[str],
    folder: Path,
    job: Mapping[str, Any],
    annotate: Annotate,
    what: str,
) -> Annotated:
    """Write parts for all rows of Parquet, JSON Lines and CSV files into `folder`, and return when all exist.

    names: files, or sources with globs (`parquet:`, `jsonl:`, `csv:`, `hf:`). columns: the text columns. job: all that
    the values depend on, as JSON; a folder of another job is refused. A null text counts as empty. Finally all parts
    have the same schema (`_unify`). Raises ValueError for other files, missing columns, and a column that the
    model would replace; for a `RowError` of `annotate` it names the file.
    """
    require_package("pyarrow", "'bertjax[parquet]'", f"--output {folder}")
    if is_remote(str(folder)):
        raise ValueError(f"--output {folder}: name a folder of this machine, or one that the machines share")
    units = _units(names)
    folder.mkdir(parents=True, exist_ok=True)
    _require_same_job(folder, {**job, "columns": list(columns), "units": [_description(unit) for unit in units]})
    started, count, rows = time.monotonic(), 0, 0
    with Claims(folder / _CLAIMS) as claims, Progress(len(units), what, unit="part") as progress:
        while missing := [unit for unit in units if not _part(folder, unit).exists()]:
            before = count
            for unit, table in _read_ahead(
                claims.claim_each(missing, lambda unit: _part(folder, unit).exists()), columns
            ):
                whole = _with_columns(table, columns, annotate, unit.files[0])
                _write(whole, _part(folder, unit))
                claims.release(unit.number)
                count, rows = count + 1, rows + whole.num_rows
                progress.update(1)
            if count == before:
                time.sleep(_WAIT_SECONDS)
    _unify([_part(folder, unit) for unit in units])
    return Annotated(folder, len(units), count, rows, time.monotonic() - started)


def _units(names: Sequence[str]) -> list[Unit]:
    """A unit for each file or span of one. Raises ValueError for files that are not tables."""
    sources = [parse_source(name if ":" in name else f"{likely_kind(name)}:{name}") for name in names]
    files = [file for source in sources for file in source_files(source)]
    if others := [file.path for file in files if file.kind not in _TABLES]:
        raise ValueError(f"{first_names(others)}: only files of {', '.join(_TABLES)} have rows to add columns to")
    size = min(max(sum(map(text_bytes, files)) // _UNITS, _SMALLEST), _LARGEST)
    parts = [part for file in files for part in _TABLES[file.kind].split(file, max(1, text_bytes(file) // size))]
    return [Unit(number, 0, (part,), part.size) for number, part in enumerate(parts)]


def _description(unit: Unit) -> list[Any]:
    (file,) = unit.files
    return [file.path.rpartition("/")[2], *(file.span or (0, unit.size))]


def _require_same_job(folder: Path, job: dict[str, Any]) -> None:
    """Record a job in its folder. Raises ValueError if the folder belongs to another job, or has other files."""
    path = folder / _JOB
    if not path.exists():
        if others := [other.name for other in folder.iterdir() if not other.name.startswith((".", "_"))]:
            raise ValueError(
                f"--output {folder}: it has other files ({first_names(sorted(others))}); name an empty folder"
            )
        with replacing(path) as file:
            file.write(json.dumps(job).encode())
    earlier: dict[str, Any] = read_json(path, remedy="delete the folder")
    if changed := [name for name in job if earlier.get(name) != job[name]]:
        raise ValueError(
            f"--output {folder}: its parts were made with another {', '.join(changed)}; name another folder"
        )


def _part(folder: Path, unit: Unit) -> Path:
    return folder / f"part-{unit.number:05}.parquet"


def _read_ahead(units: Iterable[Unit], columns: Sequence[str]) -> Iterator[tuple[Unit, pyarrow.Table]]:
    """Yield units with their rows; the next unit is claimed and read while the model works on one."""
    with ThreadPoolExecutor(1) as thread:
        source = iter(units)

        def read() -> tuple[Unit, pyarrow.Table] | None:
            unit = next(source, None)
            return None if unit is None else (unit, _TABLES[unit.files[0].kind].read(unit.files[0], columns))

        waiting = thread.submit(read)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(read)
            yield item


def _with_columns(table: pyarrow.Table, columns: Sequence[str], annotate: Annotate, file: SourceFile) -> pyarrow.Table:
    """Add the model's columns to the rows."""
    import pyarrow as pa

    path = file.path
    if missing := [name for name in columns if name not in table.column_names]:
        raise ValueError(
            f"{path}: no column {missing[0]!r}; it has {first_names(table.column_names, 20)}; name one with --column"
        )
    texts = [table.column(name).to_pylist() for name in columns]
    if wrong := [value for values in texts for value in values if not isinstance(value, str | None)]:
        raise ValueError(f"{path}: a column of {', '.join(columns)} has {wrong[0]!r}, not a string")
    try:
        added = annotate([tuple(text or "" for text in row) for row in zip(*texts, strict=True)])
    except RowError as error:
        span = f", of those from {file.span[0]:,} on" if file.span and file.span[0] else ""
        raise ValueError(f"{path}: row {error.number + 1:,}{span}: {error}") from None
    for name, values in added.items():
        if name in table.column_names:
            raise ValueError(f"{path}: it has a column {name!r} already; rename it, since the model adds one")
        table = table.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
    return table


def _write(table: pyarrow.Table, path: Path) -> None:
    from pyarrow.parquet import write_table

    with replacing(path) as file:
        write_table(table, file)


def _unify(paths: Sequence[Path]) -> None:
    """Give all parts the same columns and types; a column that a part lacks becomes null there.

    The type of a column is the narrowest that holds all parts' values: null fits any type, integers become floats if
    mixed with floats, lists and objects are merged. Without such a type, the column becomes text, with other values
    than text as JSON. Parts are replaced atomically, so that any number of processes may do this at once.
    """
    import pyarrow as pa
    from pyarrow.parquet import read_schema, read_table

    schemas = [read_schema(path) for path in paths]
    if all(schema.equals(schemas[0]) for schema in schemas):
        return
    names = dict.fromkeys(name for schema in schemas for name in schema.names)
    fields = {name: [schema.field(name) for schema in schemas if name in schema.names] for name in names}
    whole = pa.schema([_common_field(some, len(schemas)) for some in fields.values()], schemas[0].metadata)
    for path, schema in zip(paths, schemas, strict=True):
        if not schema.equals(whole):
            table = read_table(path)
            nulls = pa.nulls(table.num_rows)
            columns = [table.column(name) if name in schema.names else nulls for name in names]
            _write(pa.table([*map(_as_type, columns, whole.types)], whole), path)


def _common_field(fields: Sequence[pyarrow.Field], parts: int) -> pyarrow.Field:
    """The field that holds the values of all `fields`; nullable if fewer than `parts` parts have it."""
    import pyarrow as pa

    try:
        schemas = [pa.schema([field]) for field in fields]
        common = pa.unify_schemas(schemas, promote_options="permissive").field(0)
    except pa.ArrowTypeError:
        common = pa.field(fields[0].name, pa.string())
    return common if len(fields) == parts else common.with_nullable(True)


def _as_type(column: Any, kind: pyarrow.DataType) -> Any:
    import pyarrow as pa

    if column.type == kind:
        return column
    if kind == pa.string():
        return pa.array(_as_texts(column.to_pylist()), kind)
    try:
        return column.cast(kind, safe=False)  # a large integer is rounded
    except pa.ArrowNotImplementedError:  # of objects with other fields
        return pa.array(column.to_pylist(), kind)


def _as_texts(values: Iterable[Any]) -> list[str | None]:
    """Convert values other than text to JSON."""
    return [
        value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False, default=str)
        for value in values
    ]


def _read_parquet(file: SourceFile, texts: Sequence[str]) -> pyarrow.Table:
    return parquet.read_table(file.path, file.span)


def _read_jsonl(file: SourceFile, texts: Sequence[str]) -> pyarrow.Table:
    """The rows with the union of their fields; a field of several types becomes text, as in `_unify`."""
    import pyarrow as pa

    records: list[dict[str, Any]] = []
    for where, record in jsonl.json_records(file.path, ReadCounts(), file.encoding, file.span):
        if wrong := [name for name in texts if not isinstance(record.get(name), str | None)]:
            raise ValueError(f"{where}: field {wrong[0]!r} is {record[wrong[0]]!r:.80}, not a string")
        records.append(record)
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        values = [record.get(name) for record in records]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns[name] = pa.array(_as_texts(values), pa.string())
    return pa.table(columns)


def _read_csv(file: SourceFile, texts: Sequence[str]) -> pyarrow.Table:
    """The rows, all columns as text."""
    import pyarrow as pa

    counts = ReadCounts()
    header, rows = csv_rows.read_table(file, counts, file.on_bad_record(counts))
    if repeated := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"{file.path}: {header.count(repeated[0])} columns {repeated[0]!r}; rename all but one")
    fields = [row for _, row in rows]
    return pa.table([pa.array([row[i] for row in fields], pa.string()) for i in range(len(header))], header)


_TABLES = {
    parquet.KIND.name: _Table(parquet.split, _read_parquet),
    jsonl.KIND.name: _Table(partial(split_lines, least=1), _read_jsonl),
    csv_rows.KIND.name: _Table(lambda file, count: [file], _read_csv),  # a quoted field may have line breaks
}
assert KINDS.keys() >= _TABLES.keys()
