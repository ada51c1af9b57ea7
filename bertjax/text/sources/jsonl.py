"""The `jsonl` source: a JSON object per line, with a document in one of its fields."""

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
    """Read the documents, whose lines are paragraphs. Raises ValueError like `json_texts` and `marked`."""
    field = file.feature or DEFAULT_FIELD
    for where, record in json_records(file.path, counts, file.encoding):
        text = text_in(record, field, where, counts)
        yield from split_paragraphs(marked(text, record.get(file.spans), file.spans, where) if file.spans else text)


def json_texts(path: str, counts: ReadCounts, field: str = DEFAULT_FIELD) -> Iterator[str]:
    """Yield the text in a field of each line's JSON object; blank lines are skipped.

    Raises ValueError like `json_records` and `text_in`.
    """
    for where, record in json_records(path, counts):
        yield text_in(record, field, where, counts)


def json_records(path: str, counts: ReadCounts, encoding: str = UTF8) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line, JSON object) of each line; blank lines are skipped.

    Raises ValueError naming file and line for bad JSON, for a value that is not an object, or a record above
    `RECORD_CAP`.
    """

    def refuse(number: int) -> None:
        raise ValueError(f"{path}, line {number}: a record of more than {RECORD_CAP >> 20} MiB; is it JSON Lines?")

    for number, line in enumerate(read_lines(path, refuse, RECORD_CAP, counts, encoding=encoding), 1):
        if line and not line.isspace():
            where = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # also int()'s ValueError, for too many digits
                raise ValueError(f"{where}: bad JSON ({error}); every line must be one JSON object") from None
            if not isinstance(record, dict):
                raise ValueError(f"{where}: a JSON {type(record).__name__}, not an object with fields")
            yield where, record


def text_in(record: Mapping[str, Any], field: str, where: str, counts: ReadCounts) -> str:
    """The text in a record's field; lone surrogates, which JSON can spell, become U+FFFD, counted in `counts`.

    Raises ValueError naming `where` if the field is missing or not a string.
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
        text.encode()  # many times as fast as a search for surrogates
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
