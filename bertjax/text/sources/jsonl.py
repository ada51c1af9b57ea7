"""The `jsonl` source: a JSON object a line, with a document in one of its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from bertjax.storage.lines import RECORD_CAP, UTF8, read_lines
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import split_paragraphs
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, SourceFile, SourceKind
from bertjax.text.spans import marked

_SURROGATE = re.compile("[\ud800-\udfff]")


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """The file's documents, whose lines are paragraphs. Raises ValueError as `json_texts` and `marked` do."""
    field = file.feature or DEFAULT_FIELD
    for where, record in json_records(file.path, counts, file.encoding):
        text = text_in(record, field, where, counts)
        yield from split_paragraphs(marked(text, record.get(file.spans), file.spans, where) if file.spans else text)


def json_texts(path: str, counts: ReadCounts, field: str = DEFAULT_FIELD) -> Iterator[str]:
    """The text in a field of each JSON object of a file that has one a line; blank lines go.

    Raises ValueError as `json_records` and `text_in` do.
    """
    for where, record in json_records(path, counts):
        yield text_in(record, field, where, counts)


def json_records(path: str, counts: ReadCounts, encoding: str = UTF8) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each JSON object of a file that has one a line, after its file and line; blank lines are skipped.

    Raises ValueError naming file and line for bad JSON, for what is no object, or a record above `RECORD_CAP`.
    """

    def refuse(number: int) -> None:
        raise ValueError(f"{path}, line {number}: a record of more than {RECORD_CAP >> 20} MiB; is it JSON Lines?")

    for number, line in enumerate(read_lines(path, refuse, RECORD_CAP, counts, encoding=encoding), 1):
        if line and not line.isspace():
            where = f"{path}, line {number}"
            yield where, _json_object(where, line)


def _json_object(where: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError of int()
        raise ValueError(f"{where}: bad JSON ({error}); every line must be one JSON object") from None
    if not isinstance(record, dict):
        raise ValueError(f"{where}: a JSON {type(record).__name__}, not an object with fields")
    return record


def text_in(record: Mapping[str, Any], field: str, where: str, counts: ReadCounts) -> str:
    """A record's field; lone surrogates, which JSON can spell, become U+FFFD, added to `counts`.

    Raises ValueError naming `where` for a field that is missing or no string.
    """
    if field not in record:
        has = ", ".join(sorted(record)[:10]) or "no fields"
        raise ValueError(
            f"{where}: no field `{field}`; it has {has}; name one of them: jsonl:GLOB:FIELD, or --field FIELD"
        )
    text = record[field]
    if not isinstance(text, str):
        raise ValueError(f"{where}: field `{field}` is {type(text).__name__}, not a string")
    try:
        text.encode()  # many times as quick as looking for what hardly any text has
    except UnicodeEncodeError:
        text, replaced = _SURROGATE.subn("\ufffd", text)
        counts.replaced_characters += replaced
    return text


KIND = SourceKind(
    "jsonl",
    read,
    example="texts/*.jsonl",
    has_fields=True,
    folder_names=("*.jsonl", "*.ndjson"),
    takes_encoding=True,
)
