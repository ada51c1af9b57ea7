"""The `parquet` source: the rows of Parquet and Arrow files, the formats of Hugging Face data sets.

The first bytes of a file identify its format: Parquet, an Arrow stream (`data-*.arrow`, as written by `save_to_disk` in
Hugging Face's `datasets`) or an Arrow file. One column is read, a few rows at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Any

from bertjax.storage.lines import COMPRESSED, RECORD_CAP, Span, refuse_record
from bertjax.storage.remote import RemoteError, content_tag, is_remote, open_bytes, open_ranges
from bertjax.storage.utf8 import FileAccessError, ReadCounts, Utf8
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, SourceFile, SourceKind

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_MAGIC_BYTES = 8
_ROWS = 4  # at once; long rows need memory, and larger batches are hardly faster
_RECORDS = 256  # at once, with several columns of short values
_BUFFER = 1 << 20  # bytes of a Parquet column to read at once
_REMOTE_BUFFER = 8 << 20  # the same for a remote file, where a request takes as long as some megabytes
_STRINGS = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}  # type -> bytes type


def require_field(path: str, field: str) -> None:
    """Raise ValueError naming the file unless it is Parquet or Arrow with a string column of this name."""
    with _open_table(path) as table:
        _require_text(table.schema, path, field)


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read each row as a document, whose lines are paragraphs. Raises ValueError like `texts` and `mark_spans`."""
    field = file.feature or DEFAULT_FIELD
    others = [name for name in (file.spans, file.group) if name and name in column_names(file.path)]
    on_bad = file.on_bad_record(counts)
    rows = _numbered_texts(file.path, counts, field, file.span, on_bad)
    rest = records(file.path, others, file.span) if others else repeat({})
    for (number, text), record in zip(rows, rest, strict=False):
        if text is None:
            continue
        try:
            paragraphs = file.record_paragraphs(text, record, f"{file.path}, row {number}")
        except ValueError as error:
            on_bad(str(error))
        else:
            yield from paragraphs


def split(file: SourceFile, count: int) -> list[SourceFile]:
    """Split a Parquet file into at most `count` spans of whole row groups, of about equal size; Arrow stays whole."""
    try:
        with _open_table(file.path) as table:
            starts = table.group_starts()
    except ValueError:
        return [file]  # reading it explains the error
    if starts != sorted(starts) or not all(0 <= start < file.size for start in starts):
        return [file]  # a damaged file, or a writer with another order
    cuts = [0]
    for end in (*starts[1:], file.size):
        if end == file.size or end - cuts[-1] >= file.size / count:
            cuts.append(end)
    return [replace(file, span=span) for span in pairwise(cuts)] if len(cuts) > 2 else [file]


def texts(path: str, counts: ReadCounts, field: str) -> Iterator[str]:
    """Yield the text in a column of each row; a null is an empty text.

    Raises ValueError naming the file, and the row if possible, if the file is damaged, has no such string column, or
    has a row above `RECORD_CAP` bytes.
    """
    return (text for _, text in _numbered_texts(path, counts, field, None, refuse_record) if text is not None)


def column_names(path: str) -> list[str]:
    """The names of the columns. Raises ValueError naming the file if it is neither Parquet nor Arrow."""
    with _open_table(path) as table:
        return table.schema.names


def read_table(path: str, span: Span | None = None) -> pyarrow.Table:
    """Read all columns of a file, or of the row groups in `span`. Raises ValueError naming the file if damaged."""
    import pyarrow as pa

    with _open_table(path) as table:
        batches = list(table.batches(table.schema.names, _RECORDS, span))
        for batch in batches:
            batch.validate(full=True)
        return pa.Table.from_batches(batches, table.schema)


def records(path: str, fields: Sequence[str], span: Span | None = None) -> Iterator[dict[str, Any]]:
    """Yield each row's values in `fields` as Python objects, None for a null; only the row groups in `span`, if given.

    Raises ValueError naming the file if it is damaged.
    """
    with _open_table(path) as table:
        for batch in table.batches(fields, _RECORDS, span):
            for start in range(0, batch.num_rows, _RECORDS):
                rows = batch.slice(start, _RECORDS)
                rows.validate(full=True)
                yield from rows.to_pylist()


def _numbered_texts(
    path: str, counts: ReadCounts, field: str, span: Span | None, on_bad: Callable[[str], None]
) -> Iterator[tuple[int, str | None]]:
    """Yield (number, text) for each row; a text above `RECORD_CAP` is None, after calling `on_bad` with the reason."""
    utf8 = Utf8(path, f"is {field} really text? Write it as UTF-8, or name another field", counts)
    with _open_table(path) as table:
        _require_text(table.schema, path, field)
        for number, value in enumerate(_values(table, field, span), 1 + table.rows_before(span)):
            if value is not None and value.size > RECORD_CAP:
                on_bad(f"{path}, row {number}: a text of more than {RECORD_CAP >> 20} MiB; split it, or leave it out")
                yield number, None
                continue
            yield number, utf8.decode(value.to_pybytes(), record=f"row {number}, ") if value else ""
    utf8.finish()


def _values(table: _Table, field: str, span: Span | None) -> Iterator[pyarrow.Buffer | None]:
    import pyarrow as pa

    for batch in table.batches([field], _ROWS, span):
        column = batch.column(0)
        binary = getattr(pa, _STRINGS[str(column.type)])()
        for start in range(0, len(column), _ROWS):
            rows = column.slice(start, _ROWS).view(binary)
            rows.validate(full=True)  # pyarrow would follow offsets that point outside the data
            for row in rows:
                yield row.as_buffer()


def _require_text(schema: pyarrow.Schema, path: str, field: str) -> None:
    number = schema.get_field_index(field)
    if number < 0:
        has = ", ".join(schema.names[:20]) or "none"
        raise ValueError(
            f"{path}: no field {field!r}; it has {has}; name one of them: parquet:GLOB:FIELD, or --field FIELD"
        )
    kind = str(schema.field(number).type)
    if kind not in _STRINGS:
        raise ValueError(
            f"{path}: field {field!r} is {kind}, not string; name a field of text (parquet:GLOB:FIELD, or --field "
            "FIELD), or cast it"
        )


class _Table:
    """An open Arrow file or stream, read batch by batch; a local file is memory-mapped."""

    def __init__(self, path: str, is_stream: bool) -> None:
        import pyarrow as pa

        self._path, self._pa, self._is_stream = path, pa, is_stream
        with self._file() as file:
            self.schema: pyarrow.Schema = self._open(file).schema

    def batches(self, fields: Sequence[str], rows: int, span: Span | None) -> Iterator[pyarrow.RecordBatch]:
        """Yield batches with the columns `fields`."""
        numbers = [self.schema.get_field_index(field) for field in fields]
        options = self._pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
        with self._file() as file:
            reader = self._open(file, options=options)
            if self._is_stream:
                _require_stream_end(self._path)
                yield from reader
            else:
                yield from (reader.get_batch(number) for number in range(reader.num_record_batches))

    def rows_before(self, span: Span | None) -> int:
        """The number of rows before a span."""
        return 0

    def group_starts(self) -> list[int]:
        """The first byte of each row group that can be read alone; empty if there are none."""
        return []

    def _file(self) -> pyarrow.NativeFile:
        path = self._path
        return self._pa.PythonFile(open_bytes(path), "r") if is_remote(path) else self._pa.memory_map(path)

    def _open(self, file: pyarrow.NativeFile, **options: Any) -> Any:
        return (self._pa.ipc.open_stream if self._is_stream else self._pa.ipc.open_file)(file, **options)


class _ParquetTable(_Table):
    """An open Parquet file. Each column is buffered by itself, so that no byte of another column is read."""

    def __init__(self, path: str, metadata: pyarrow.parquet.FileMetaData | None) -> None:
        import pyarrow
        import pyarrow.parquet

        source = pyarrow.PythonFile(open_ranges(path), "r") if is_remote(path) else path
        buffer = _REMOTE_BUFFER if is_remote(path) else _BUFFER
        self._parquet = pyarrow.parquet.ParquetFile(source, metadata=metadata, buffer_size=buffer, pre_buffer=False)
        self.schema = self._parquet.schema_arrow

    def batches(self, fields: Sequence[str], rows: int, span: Span | None) -> Iterator[pyarrow.RecordBatch]:
        """Yield batches of at most `rows` rows from the row groups that begin in the span."""
        groups = list(range(self._parquet.num_row_groups))
        if span:
            groups = [group for group in groups if span[0] <= self._start(group) < span[1]]
        with self._parquet:
            yield from self._parquet.iter_batches(rows, groups, list(fields), use_threads=False)

    def rows_before(self, span: Span | None) -> int:
        """The number of rows in the row groups that begin before the span."""
        metadata = self._parquet.metadata
        groups = range(metadata.num_row_groups if span else 0)
        return sum(metadata.row_group(group).num_rows for group in groups if span and self._start(group) < span[0])

    def group_starts(self) -> list[int]:
        """The first byte of each row group."""
        return [self._start(group) for group in range(self._parquet.num_row_groups)]

    def _start(self, group: int) -> int:
        column = self._parquet.metadata.row_group(group).column(0)
        return column.dictionary_page_offset or column.data_page_offset


@contextmanager
def _open_table(path: str) -> Iterator[_Table]:
    """Open a file by its first bytes, which identify its format; pyarrow's errors get the file's name."""
    with _reading(path):
        if is_remote(path):
            start, metadata = _remote_ends(path, content_tag(path))
        else:
            with open(path, "rb") as file:
                start, metadata = file.read(_MAGIC_BYTES), None
        if start.startswith(_PARQUET):
            yield _ParquetTable(path, metadata)
        elif start.startswith((_ARROW_FILE, _ARROW_STREAM)):
            yield _Table(path, is_stream=start.startswith(_ARROW_STREAM))
        else:
            raise ValueError(
                f"{path}: neither Parquet nor Arrow (it begins with {start!r}); decompress it if it is compressed, or "
                "name the right kind of source"
            )


@lru_cache(maxsize=64)
def _remote_ends(path: str, tag: str) -> tuple[bytes, pyarrow.parquet.FileMetaData | None]:
    """Read the first bytes of a remote file, and the footer if it is Parquet. Cached, as a footer may be long."""
    import pyarrow
    import pyarrow.parquet

    with open_ranges(path) as file:
        start = file.read(_MAGIC_BYTES) or b""
        is_parquet = start.startswith(_PARQUET)
        return start, pyarrow.parquet.read_metadata(pyarrow.PythonFile(file, "r")) if is_parquet else None


def _require_stream_end(path: str) -> None:
    """Detect a stream truncated between two batches, which pyarrow reads without an error."""
    with open_ranges(path) if is_remote(path) else open(path, "rb") as file:
        file.seek(-len(_STREAM_END), os.SEEK_END)
        if file.read(len(_STREAM_END)) != _STREAM_END:
            raise _damaged(path, "an Arrow stream without its end")


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Import pyarrow, and convert its errors to ValueErrors that name the file."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise ValueError(f"{path}: reading it requires pyarrow; pip install 'bertjax[parquet]'") from None
    try:
        yield
    except RemoteError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise FileAccessError(f"{path}: cannot be read: {error.strerror}") from None
        raise _damaged(path, str(error).strip().partition("\n")[0]) from None


def _damaged(path: str, what: str) -> ValueError:
    what = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in what)  # libraries quote raw bytes
    return ValueError(f"{path}: damaged or cut off ({what}); get the file again, or leave it out of the source")


KIND = SourceKind(
    "parquet",
    read,
    example="wiki/*.parquet",
    has_fields=True,
    needs=("pyarrow", "'bertjax[parquet]'"),
    check=lambda file: require_field(file.path, file.feature or DEFAULT_FIELD),
    where_from="download Wikipedia with `hf download wikimedia/wikipedia --repo-type dataset --include '20231101.en/*' "
    "--local-dir wiki`, for parquet:wiki/20231101.en/*.parquet",
    split=split,
    compressed=(*COMPRESSED, ".parquet"),
    is_columnar=True,
    version=1,
    folder_names=("*.parquet", "*.arrow"),
)
