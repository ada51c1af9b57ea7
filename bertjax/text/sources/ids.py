"""The `ids` source: records with lists of integers, such as log events or ranked genes, in JSON Lines or Parquet.

A list is a document of one sentence, its numbers separated by spaces, for `data.tokenizer=integers:SIZE`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import parquet
from bertjax.text.sources.globs import has_name
from bertjax.text.sources.jsonl import json_records
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind
from bertjax.text.spans import in_group

_LINES = ("*.jsonl", "*.ndjson")
_COLUMNS = ("*.parquet", "*.arrow")
_FIELD = "ids"


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the lists in the field `ids`, or in another one: `ids:GLOB:FIELD`.

    Raises ValueError naming the record for a missing field, and for a value that is not a list of integers.
    """
    field, on_bad = file.feature or _FIELD, file.on_bad_record(counts)
    for where, record in _records(file, field, counts):
        values = record.get(field)
        if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
            on_bad(f"{where}: field `{field}` is {str(values)[:40]}, not a list of integers; name a field that is")
            continue
        if values:
            yield in_group(" ".join(map(str, values)), record.get(file.group) if file.group else None)
        yield None


def _records(file: SourceFile, field: str, counts: ReadCounts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, record) for each record."""
    if has_name(file.path, _LINES):
        yield from json_records(file.path, counts, file.encoding, None, file.on_bad_record(counts))
        return
    names = parquet.column_names(file.path)
    if field not in names:
        raise ValueError(f"{file.path}: no field {field!r}; it has {', '.join(names[:20])}; write ids:GLOB:FIELD")
    fields = [field, *[file.group] * (file.group in names)]
    for number, record in enumerate(parquet.records(file.path, fields), 1):
        yield f"{file.path}, row {number}", record


KIND = SourceKind(
    "ids",
    read,
    example="events/*.parquet:ids",
    has_fields=True,
    folder_names=(*_LINES, *_COLUMNS),
    is_sequence=True,
)
