"""The `jsonl` source: a JSON object per line, with a document in one of its fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.storage.lines import LINE_END, RECORD_CAP, UTF8, Span, read_lines, refuse_record
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.line_spans import split_lines
from bertjax.text.sources.source import DEFAULT_FIELD, Paragraphs, SourceFile, SourceKind

_SURROGATE = re.compile("[\ud800-\udfff]")


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the documents, whose lines are paragraphs.

    Raises ValueError like `json_records`, `text_in` and `mark_spans`.
    """
    field, on_bad = file.feature or DEFAULT_FIELD, file.on_bad_record(counts)
    for where, record in json_records(file.path, counts, file.encoding, file.span, on_bad):
        try:
            paragraphs = file.record_paragraphs(text_in(record, field, where, counts), record, where)
        except ValueError as error:
            on_bad(str(error))
        else:
            yield from paragraphs


def json_records(
    path: str,
    counts: ReadCounts,
    encoding: str = UTF8,
    span: Span | None = None,
    on_bad: Callable[[str], None] = refuse_record,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file and line, JSON object) for each line, or each that begins in `span`; blank lines are skipped.

    Bad JSON, values that are not objects and records above `RECORD_CAP` are left out; `on_bad` gets the reason, with
    file and line.
    """
    after = f" after byte {span[0]:,}" if span and span[0] else ""

    def leave_out(number: int) -> bool:
        on_bad(f"{path}, line {number}{after}: a record of more than {RECORD_CAP >> 20} MiB; is it JSON Lines?")
        return True

    lines = read_lines(path, leave_out, RECORD_CAP, counts, span, encoding, LINE_END)
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            where = f"{path}, line {number}{after}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # also int()'s ValueError, for too many digits
                on_bad(f"{where}: bad JSON ({error}); every line must be one JSON object")
                continue
            if isinstance(record, dict):
                yield where, record
            else:
                on_bad(f"{where}: a JSON {type(record).__name__}, not an object with fields")


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
        text.encode()  # many times faster than a search for surrogates
    except UnicodeEncodeError:
        text, replaced = _SURROGATE.subn("\ufffd", text)
        counts.replaced_characters += replaced
    return text


KIND = SourceKind(
    "jsonl",
    read,
    example="texts/*.jsonl",
    has_fields=True,
    split=split_lines,
    folder_names=("*.jsonl", "*.ndjson"),
    takes_encoding=True,
)
