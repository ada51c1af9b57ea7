"""The file formats of a source, each read as a stream of paragraphs in which None ends a document."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.storage.lines import read_lines
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import DOCUMENT_CAP, paragraphs_of

Paragraphs = Iterator[str | None]

WRAP_LIMIT = 200  # characters; nobody wraps lines by hand at more
RECORD_CAP = 32 << 20  # bytes of one JSON record
DEFAULT_FIELD = "text"  # of a record

_TAGS = re.compile(
    r"</?(?:br|poem|only|onlyinclude|noinclude|includeonly|nowiki|table|td|tr|th|li|ul|ol|div|span|center|small|big|"
    r"score|gallery|ref|references|p|i|b|u|sup|sub|font|blockquote|h[1-6])\b[^<>]{0,500}>",
    re.IGNORECASE,
)
_TITLE = re.compile(r'\btitle="(.*?)"(?=\s+\w+=|\s*/?>)')
_SURROGATE = re.compile("[\ud800-\udfff]")


def read_text(path: str, counts: ReadCounts) -> Paragraphs:
    """One document per file; blank lines end paragraphs.

    The lines between blank lines are one wrapped paragraph, unless one of them is longer than `WRAP_LIMIT`: then every
    line is a paragraph.
    """
    block: list[str] = []
    size = 0
    for line in read_lines(path, _count_cut(counts), counts=counts):
        line = line.strip()
        if line and size < DOCUMENT_CAP:
            block.append(line)
            size += len(line) + 1
            continue
        yield from _unwrap(block)
        block, size = ([line], len(line)) if line else ([], 0)
    yield from _unwrap(block)
    yield None


def _unwrap(block: list[str]) -> list[str]:
    if not block or any(len(line) > WRAP_LIMIT for line in block):
        return block
    return [" ".join(block)]


def read_sentence_lines(path: str, counts: ReadCounts) -> Paragraphs:
    """google-research/bert's format: a sentence a line, blank lines between documents; the file's end ends one too."""
    inside = False
    for line in read_lines(path, _count_cut(counts), counts=counts):
        line = line.strip()
        if line:
            inside = True
            yield line
        elif inside:
            inside = False
            yield None
    if inside:
        yield None


def read_jsonl(path: str, counts: ReadCounts, field: str = DEFAULT_FIELD) -> Paragraphs:
    """A JSON object a line with the document in one field, whose newlines end paragraphs; blank lines go.

    Raises ValueError as `json_texts` does.
    """
    for text in json_texts(path, counts, field):
        yield from paragraphs_of(text)


def json_texts(path: str, counts: ReadCounts, field: str = DEFAULT_FIELD) -> Iterator[str]:
    """The text in a field of each JSON object of a file that has one a line; blank lines go.

    Raises ValueError as `json_records` and `text_in` do.
    """
    for where, record in json_records(path, counts):
        yield text_in(record, field, where, counts)


def json_records(path: str, counts: ReadCounts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each JSON object of a file that has one a line, behind the file and line where it stands; blank lines go.

    Raises ValueError naming file and line for bad JSON, for what is no object, or a record above `RECORD_CAP`.
    """

    def refuse(number: int) -> None:
        raise ValueError(f"{path}, line {number}: a record of more than {RECORD_CAP >> 20} MiB; is it JSON Lines?")

    for number, line in enumerate(read_lines(path, refuse, RECORD_CAP, counts), 1):
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


def read_wikiextractor(path: str, counts: ReadCounts) -> Paragraphs:
    """WikiExtractor's output: `<doc ... title="...">`, the title, paragraphs a line each, `</doc>`.

    The line that repeats the title is left out, left-over markup too. A document that the next one or the end of the
    file cuts off is kept and counted. Raises ValueError if the file has text but no `<doc`.
    """
    inside, title, seen, outside = False, "", False, 0
    for line in read_lines(path, _count_cut(counts), counts=counts):
        if line[:1] == "<":
            if line.startswith("<doc "):
                if inside:
                    counts.unterminated_documents += 1
                    yield None
                found = _TITLE.search(line)
                inside = seen = True
                title = html.unescape(found[1]) if found else ""
                continue
            if inside and line.startswith("</doc>"):
                inside = False
                yield None
                continue
        if not inside:
            outside += bool(line.strip())
            continue
        if "<" in line:
            line = _TAGS.sub(" ", line)
        line = line.strip()
        if line and title:
            repeated, title = html.unescape(line) == title, ""
            if repeated:
                continue
        if line:
            yield line
    if outside and not seen:
        raise ValueError(f"{path}: {outside} lines of text but no `<doc ...>`; is it WikiExtractor's output?")
    if inside:
        counts.unterminated_documents += 1
        yield None
    counts.lines_outside_documents += outside


def _count_cut(counts: ReadCounts) -> Callable[[int], None]:
    def count(number: int) -> None:
        counts.cut_lines += 1

    return count
