"""The `parquet` source: the rows of Parquet and Arrow files, the formats of Hugging Face data sets.

The first bytes of a file identify its format: Parquet, an Arrow stream (`data-*.arrow`, as written by `save_to_disk` of
Hugging Face's `datasets`) or an Arrow file. One column is read, a few rows at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bertjax.storage.lines import COMPRESSED, RECORD_CAP
from bertjax.storage.remote import RemoteError, is_remote, open_bytes
from bertjax.storage.utf8 import ReadCounts, Utf8
from bertjax.text.documents import split_paragraphs
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, SourceFile, SourceKind
from bertjax.text.spans import marked

if TYPE_CHECKING:
    import pyarrow

_PARQUET, _ARROW_FILE, _ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
_ROWS = 4  # at once; long rows need memory, and more are hardly faster
_RECORDS = 256  # at once, with several columns of short values
_BUFFER = 1 << 20  # bytes of a Parquet column to read at once
_STRINGS = {"string": "binary", "large_string": "large_binary", "string_view": "binary_view"}  # type -> its bytes


def require_field(path: str, field: str) -> None:
    """Raise ValueError naming the file unless it is Parquet or Arrow with a string column of this name."""
    with _reading(path) as pa:
        schema = _schema(path, pa)
        names, number = schema.names, schema.get_field_index(field)
        kind = str(schema.field(number).type) if number >= 0 else ""
    if not kind:
        has = ", ".join(names[:20]) or "none"
        raise ValueError(
            f"{path}: no field {field!r}; it has {has}; name one of them: parquet:GLOB:FIELD, or --field FIELD"
        )
    if kind not in _STRINGS:
        raise ValueError(
            f"{path}: field {field!r} is {kind}, not string; name a field of text (parquet:GLOB:FIELD, or --field "
            "FIELD), or cast it"
        )


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the rows, a document each, whose lines are paragraphs. Raises ValueError like `texts` and `marked`."""
    field = file.feature or DEFAULT_FIELD
    spans: Iterator[Any] = repeat(None)
    if file.spans and file.spans in column_names(file.path):
        spans = (record[file.spans] for record in records(file.path, [file.spans]))
    for number, (text, listed) in enumerate(zip(texts(file.path, counts, field), spans, strict=False), 1):
        yield from split_paragraphs(marked(text, listed, file.spans, f"{file.path}, row {number}"))


def texts(path: str, counts: ReadCounts, field: str) -> Iterator[str]:
    """Yield the text in a column of each row; a null is an empty text.

    Raises ValueError naming the file, and the row if possible, if the file is damaged, has no such string column, or
    has a row above `RECORD_CAP` bytes.
    """
    require_field(path, field)
    utf8 = Utf8(path, f"is {field} really text? Write it as UTF-8, or name another field", counts)
    for number, value in enumerate(_values(path, field), 1):
        if value is not None and value.size > RECORD_CAP:
            raise ValueError(
                f"{path}, row {number}: a text of more than {RECORD_CAP >> 20} MiB; split it, or leave it out"
            )
        yield utf8.decode(value.to_pybytes(), record=f"row {number}, ") if value else ""
    utf8.finish()


def column_names(path: str) -> list[str]:
    """The names of the columns. Raises ValueError naming the file if it is neither Parquet nor Arrow."""
    with _reading(path) as pa:
        return _schema(path, pa).names


def records(path: str, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each row's values in these columns as Python objects, None for a null.

    Raises ValueError naming the file if it is damaged.
    """
    with _reading(path) as pa:
        for batch in _batches(path, fields, pa, _RECORDS):
            for start in range(0, batch.num_rows, _RECORDS):
                rows = batch.slice(start, _RECORDS)
                rows.validate(full=True)
                yield from rows.to_pylist()


def _values(path: str, field: str) -> Iterator[pyarrow.Buffer | None]:
    with _reading(path) as pa:
        for batch in _batches(path, [field], pa, _ROWS):
            column = batch.column(0)
            binary = getattr(pa, _STRINGS[str(column.type)])()
            for start in range(0, len(column), _ROWS):
                rows = column.slice(start, _ROWS).view(binary)
                rows.validate(full=True)  # pyarrow would follow offsets that point outside of the data
                for row in rows:
                    yield row.as_buffer()


def _batches(path: str, fields: Sequence[str], pa: ModuleType, rows: int) -> Iterator[pyarrow.RecordBatch]:
    """Yield columns of a file: Parquet at most `rows` rows at a time, Arrow in the file's memory-mapped batches."""
    if _magic(path) == _PARQUET:
        import pyarrow.parquet

        source = _remote_file(path, pa) if is_remote(path) else path
        with pyarrow.parquet.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield from file.iter_batches(rows, columns=list(fields), use_threads=False)
        return
    numbers = [_schema(path, pa).get_field_index(field) for field in fields]
    options = pa.ipc.IpcReadOptions(included_fields=numbers, use_threads=False)
    with _arrow_file(path, pa) as file:
        if _magic(path) == _ARROW_STREAM:
            _require_stream_end(path)
            yield from pa.ipc.open_stream(file, options=options)
        else:
            reader = pa.ipc.open_file(file, options=options)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def _schema(path: str, pa: ModuleType) -> pyarrow.Schema:
    magic = _magic(path)
    if magic == _PARQUET:
        import pyarrow.parquet

        return pyarrow.parquet.read_schema(_remote_file(path, pa) if is_remote(path) else path)
    with _arrow_file(path, pa) as file:
        return (pa.ipc.open_stream if magic == _ARROW_STREAM else pa.ipc.open_file)(file).schema


def _magic(path: str) -> bytes:
    with open_bytes(path) as file:
        start = file.read(8)
    for magic in (_PARQUET, _ARROW_FILE, _ARROW_STREAM):
        if start.startswith(magic):
            return magic
    raise ValueError(
        f"{path}: neither Parquet nor Arrow (it begins with {start!r}); give such files, decompressed, or name the "
        "kind of source that it is"
    )


def _arrow_file(path: str, pa: ModuleType) -> pyarrow.NativeFile:
    return _remote_file(path, pa) if is_remote(path) else pa.memory_map(path)


def _remote_file(path: str, pa: ModuleType) -> pyarrow.NativeFile:
    return pa.PythonFile(open_bytes(path), "r")


def _require_stream_end(path: str) -> None:
    """Detect a stream truncated between two batches, which pyarrow reads without an error."""
    with open_bytes(path) as file:
        file.seek(-len(_STREAM_END), os.SEEK_END)
        if file.read() != _STREAM_END:
            raise _damaged(path, "an Arrow stream without its end")


@contextmanager
def _reading(path: str) -> Iterator[ModuleType]:
    """Import pyarrow, and convert its errors to ValueErrors that name the file."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        raise ValueError(f"{path}: reading it requires pyarrow; pip install 'bertjax[parquet]'") from None
    try:
        yield pa
    except RemoteError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
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
    compressed=(*COMPRESSED, ".parquet"),
    folder_names=("*.parquet", "*.arrow"),
)
