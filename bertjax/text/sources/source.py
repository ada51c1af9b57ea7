"""What a source of text is: the name that a user gives it, its files, and its kind, with all that differs by kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bertjax.storage.lines import COMPRESSED, UTF8, Span, read_lines
from bertjax.storage.utf8 import ReadCounts

DEFAULT_FIELD = "text"  # of a record

Paragraphs = Iterator[str | None]  # without newlines, none of them empty; None ends a document


@dataclass(frozen=True)
class Source:
    """A `kind:pattern` that a user gave."""

    kind: str
    pattern: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind


@dataclass(frozen=True)
class SourceFile:
    """What is read as a whole by one process: a file, a span of one, or several that belong together."""

    kind: str
    path: str  # or, of several files, a name for them that is the same on every machine
    members: tuple[str, ...] = ()  # the files, where they are several
    feature: str = ""  # the field of a record with the text, unless it is `DEFAULT_FIELD`
    spans: str = ""  # the field of a record with the spans of its text (`text.spans.marked`); empty: there is none
    encoding: str = UTF8  # of text
    span: Span | None = None  # the bytes of the file in which the documents to read begin; None: all
    listed: int | None = None  # bytes of what has no size on this disk: a remote file, text that is made

    @property
    def size(self) -> int:
        """Bytes on disk, for balancing work."""
        if self.span is not None:
            return self.span[1] - self.span[0]
        if self.listed is not None:
            return self.listed
        return sum(os.path.getsize(path) for path in self.members or (self.path,))


@dataclass(frozen=True)
class SourceKind:
    """A kind of source. To add one, write such an object in a file of its own and a line in the registry."""

    name: str  # the text before the colon
    read: Callable[[SourceFile, ReadCounts], Paragraphs] | None
    """A file's documents, in bounded memory, as paragraphs; raises ValueError naming file and offset of what is not of
    the kind, and adds to the counts what it left out or changed. None if the files hold rows and no text."""
    no_text: str = ""  # of a kind without `read`: why there is no text to read, and what to do with its files
    example: str = "books/*.txt"  # a pattern, for messages
    default_pattern: str | None = None  # of a bare name: text that every installation has; None: a pattern is needed
    find: Callable[[Source], list[SourceFile]] | None = None  # the files in order; None: those that a glob matches
    has_fields: bool = False  # whether `:FIELD` may follow the glob, which names the field of a record with the text
    check: Callable[[SourceFile], None] | None = None  # raises ValueError before long work for a file of another kind
    needs: tuple[str, str] | None = None  # the module that reads it, if it is optional, and what pip is given for it
    where_from: str = ""  # where such files can be had, for a glob that matches nothing
    split: Callable[[SourceFile, int], list[SourceFile]] | None = None
    """A file as about so many spans that several processes can read; None: a file is never split."""
    compressed: tuple[str, ...] = COMPRESSED  # endings of files whose text is several times as large as they are
    sentence_per_line: bool = False  # each paragraph is one sentence
    file_is_document: bool = False  # each file is one document, if it has text
    is_english: bool = False  # whatever the files, so that no other script has to be looked for
    folder_names: tuple[str, ...] = ("*",)  # the names, less an ending of `COMPRESSED`, of the files of a folder
    takes_encoding: bool = False  # whether its files are text in the encoding of `data.encoding`
    version: int = 0  # of reading; a change makes other stores of sources of this kind

    def __post_init__(self) -> None:
        assert (self.read is None) == bool(self.no_text), self.name


def source_lines(file: SourceFile, counts: ReadCounts) -> Iterator[str]:
    """The lines of a file of text, compressed or not; those that are too long to hold are cut, and counted.

    Raises ValueError as `read_lines` does.
    """

    def count(number: int) -> None:
        counts.cut_lines += 1

    return read_lines(file.path, count, counts=counts, encoding=file.encoding)
