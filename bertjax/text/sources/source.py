"""Sources of text: the user's name for one, its files, and its kind, which holds everything that differs by kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertjax.storage.lines import COMPRESSED, UTF8, Span, read_lines, refuse_record
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import split_paragraphs
from bertjax.text.spans import in_group, mark_spans

DEFAULT_FIELD = "text"  # of a record
# Unlike a file name, a field has no folder, suffix or wildcard.
_FIELD = re.compile(r"(?P<glob>.+):(?P<field>[^:./*?\[\]]+)", re.DOTALL)

Paragraphs = Iterator[str | None]  # without newlines, not empty; None ends a document


@dataclass(frozen=True)
class Source:
    """A `kind:pattern` that a user gave."""

    kind: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind


@dataclass(frozen=True)
class SourceFile:
    """Input that one process reads as a whole: a file, a span of a file, or several files that belong together."""

    kind: str
    path: str  # or, for several files, a name that is the same on every machine
    members: tuple[str, ...] = ()  # the files, if there are several
    feature: str = ""  # the record field with the text, unless it is `DEFAULT_FIELD`
    spans: str = ""  # the record field with the spans of the text (`text.spans.mark_spans`), if any
    group: str = ""  # the record field that names the group of near relatives (data.groups), if any
    encoding: str = UTF8  # of text
    span: Span | None = None  # byte range in which the documents to read begin; None: the whole file
    leaves_out: bool = False  # whether to leave out records that cannot be read (data.bad_records)
    listed: int | None = None  # bytes of input without a size on this disk: a remote file, generated text
    digest: str = ""  # SHA-256 (hex) of content that cannot change, if the storage provides it

    @property
    def reading(self) -> tuple[str, ...]:
        """Key of everything that decides whether the file can be read: its path and options, but not its span."""
        return self.path, self.kind, self.encoding, self.feature, self.spans

    @property
    def size(self) -> int:
        """Bytes on disk, for balancing work."""
        if self.span is not None:
            return self.span[1] - self.span[0]
        if self.listed is not None:
            return self.listed
        return sum(os.path.getsize(path) for path in self.members or (self.path,))

    def on_bad_record(self, counts: ReadCounts) -> Callable[..., None]:
        """The callback for records that cannot be read: `ReadCounts.leave_out`, which counts them, or `refuse_record`.

        Its argument is the reason, with file and record.
        """
        return counts.leave_out if self.leaves_out else refuse_record

    def record_paragraphs(self, text: str, record: Mapping[str, Any], where: str) -> Paragraphs:
        """Split a record's text into paragraphs, with the spans and the group from the record's fields.

        Raises ValueError like `mark_spans`, immediately rather than during iteration.
        """
        text = mark_spans(text, record.get(self.spans), self.spans, where) if self.spans else text
        return split_paragraphs(in_group(text, record.get(self.group)) if self.group else text)


@dataclass(frozen=True)
class SourceKind:
    """A kind of source. To add one, write such an object in its own file and a line in the registry."""

    name: str  # the text before the colon
    read: Callable[[SourceFile, ReadCounts], Paragraphs] | None
    """Read a file's documents as paragraphs, in bounded memory. Raises ValueError naming file and offset of invalid
    content, and counts what it left out or changed. None if the files hold rows instead of text, or are of other
    kinds."""
    no_text: str = ""  # for a kind whose files hold rows: why there is no text, and what to do with the files
    example: str = "books/*.txt"  # a pattern, for messages
    default_pattern: str | None = None  # of a bare name; None: a pattern is required
    find: Callable[[Source], list[SourceFile]] | None = None
    """Find the files in order; those without a kind get one by their names. None: use the files that a glob matches."""
    has_fields: bool = False  # whether `:FIELD` may follow the glob, naming the record field with the text
    check: Callable[[SourceFile], None] | None = None  # raises ValueError, before long work, for a file of another kind
    needs: tuple[str, str] | None = None  # the optional module that reads it, and the argument for pip
    where_from: str = ""  # where to get such files, for a glob that matches nothing
    split: Callable[[SourceFile, int], list[SourceFile]] | None = None
    """Split a file into about this number of spans for several processes; None: files are never split."""
    compressed: tuple[str, ...] = COMPRESSED  # suffixes of files whose text is several times larger
    sentence_per_line: bool = False  # each paragraph is one sentence
    is_sequence: bool = False  # a document is not prose: each paragraph is one sentence, however long
    file_is_document: bool = False  # each file is one document, if it has text
    is_english: bool = False  # the text is always English, so searching for other scripts is unnecessary
    folder_names: tuple[str, ...] = ("*",)  # names of the files in a folder, without a suffix of `COMPRESSED`
    takes_encoding: bool = False  # whether `data.encoding` applies to its files
    of_hub: bool = False  # the pattern begins with the name of a data set on the Hugging Face Hub
    is_columnar: bool = False  # only a small part of a file may be read, so a remote one is identified by its tag
    version: int = 0  # of reading; a change makes new stores

    @property
    def is_mixed(self) -> bool:
        """Whether each file is of another kind, by its name."""
        return self.read is None and not self.no_text


def split_field(pattern: str) -> tuple[str, str]:
    """Split `GLOB[:FIELD]`; the field is '' by default. After a glob that ends like a field, write `:text`."""
    match = _FIELD.fullmatch(pattern)
    return (match["glob"], match["field"]) if match else (pattern, "")


def source_lines(file: SourceFile, counts: ReadCounts, record_end: re.Pattern[bytes] | None = None) -> Iterator[str]:
    """Read the lines of a text file, compressed or not; overlong lines are cut and counted.

    With `record_end`, reads only the records of the file's span. Raises ValueError like `read_lines`.
    """

    def count(number: int) -> None:
        counts.cut_lines += 1

    span = file.span if record_end else None
    return read_lines(file.path, count, counts=counts, span=span, encoding=file.encoding, record_end=record_end)
