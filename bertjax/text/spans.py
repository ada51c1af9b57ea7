"""Text with its source record and spans of characters: the words, phrases and entities that a source marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

# Kind of a span -> plane of the token store, which marks the tokens that continue such a span.
PLANE_OF_KIND = {"word": "continues", "phrase": "phrases", "entity": "entities"}
DEFAULT_KIND = "phrase"


class Span(NamedTuple):
    """A marked range of characters, [start, end)."""

    start: int
    end: int
    kind: str  # a key of `PLANE_OF_KIND`


class Record(NamedTuple):
    """The source record that a document was read from."""

    name: str  # such as an accession; may be empty
    group: str = ""  # the record's cluster of near relatives, if the source names it


NO_RECORD = Record("")


class MarkedText(str):
    """A text with its record and its spans, in order of their starts; spans of one kind do not overlap."""

    spans: tuple[Span, ...]
    record: Record

    def __new__(cls, text: str, spans: Iterable[Span] = (), record: Record = NO_RECORD) -> MarkedText:
        """Attach spans and a record to a text."""
        marked_text = super().__new__(cls, text)
        marked_text.spans, marked_text.record = tuple(spans), record
        return marked_text


def get_spans(text: str) -> tuple[Span, ...]:
    """The spans of a text; none for a plain string."""
    return text.spans if isinstance(text, MarkedText) else ()


def in_group(text: str, group: object) -> str:
    """Set the group of a text's record; returns the text itself if `group` is None or empty."""
    if group is None or group == "":
        return text
    return MarkedText(text, get_spans(text), get_record(text)._replace(group=str(group)))


def get_record(text: str) -> Record:
    """The record of a text; `NO_RECORD` for a plain string."""
    return text.record if isinstance(text, MarkedText) else NO_RECORD


def split_spans(text: str, pieces: Iterable[str]) -> Iterable[str]:
    """Attach a text's record and spans to its successive pieces, between which there is only white space.

    A span across the end of a piece becomes a span of both pieces.
    """
    return _with_spans(text, pieces) if isinstance(text, MarkedText) else pieces


def _with_spans(text: MarkedText, pieces: Iterable[str]) -> Iterator[str]:
    upcoming, end = list(reversed(text.spans)), 0
    open_spans: list[Span] = []
    for piece in pieces:
        begin = text.index(piece, end)
        end = begin + len(piece)
        while upcoming and upcoming[-1].start < end:
            open_spans.append(upcoming.pop())
        open_spans = [span for span in open_spans if span.end > begin]
        inside = (Span(max(span.start, begin) - begin, min(span.end, end) - begin, span.kind) for span in open_spans)
        yield MarkedText(piece, inside, text.record)


def join(texts: Sequence[str], between: str) -> str:
    """Join texts and their spans; the result has the record of the first."""
    joined = between.join(texts)
    if MarkedText not in set(map(type, texts)):
        return joined
    spans, begin = [], 0
    for text in texts:
        spans += [Span(span.start + begin, span.end + begin, span.kind) for span in get_spans(text)]
        begin += len(text) + len(between)
    return MarkedText(joined, spans, get_record(texts[0]))


def mark_spans(text: str, listed: Any, field: str, where: str) -> str:
    """Mark a text with the spans of a record's `field`; None marks nothing.

    A span is [start, end], [start, end, kind] or an object with these keys, counts Unicode characters, and is a phrase
    by default. Raises ValueError naming the record (`where`) and the span if it is malformed, outside the text, empty,
    of an unknown kind, or overlaps another of its kind.
    """
    if listed is None:
        return text
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        raise ValueError(f"{where}: field `{field}` is {type(listed).__name__}, not a list of spans")
    spans = sorted(_span(item, f"{where}: span {str(item)[:80]} of `{field}`", len(text)) for item in listed)
    last: dict[str, Span] = {}
    for span in spans:
        before = last.get(span.kind)
        if before is not None and before.end > span.start:
            raise ValueError(
                f"{where}: span {[*span]} of `{field}` overlaps {[*before]}; spans of one kind must not overlap: "
                "leave one of them out"
            )
        last[span.kind] = span
    return MarkedText(text, spans)


def _span(item: Any, where: str, size: int) -> Span:
    values = [item.get(key) for key in Span._fields] if isinstance(item, Mapping) else item
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) not in (2, 3):
        raise ValueError(f"{where}: it must be [start, end] or [start, end, kind]")
    start, end, kind = (*values, None)[:3]
    kind = DEFAULT_KIND if kind is None else kind
    if type(start) is not int or type(end) is not int:
        raise ValueError(f"{where}: start and end must be integers, as offsets in characters of the text")
    if not isinstance(kind, str) or kind not in PLANE_OF_KIND:
        raise ValueError(f"{where}: kind {kind!r} is unknown; choose from {', '.join(PLANE_OF_KIND)}")
    if not 0 <= start < end <= size:
        raise ValueError(f"{where}: [start, end) must be non-empty and lie within 0 to {size}, the length of the text")
    return Span(start, end, kind)
