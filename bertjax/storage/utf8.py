"""Decoding UTF-8: invalid bytes become U+FFFD and are counted; a file with more than 1 % of them is refused."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

MOST_REPLACED = 0.01  # share of a file's characters that may be replaced; with more, the file is not UTF-8 text
JUDGED_EARLY = 16 << 20  # characters; a file is refused before its end if its share is above the limit for so many

_REPLACEMENT = "\ufffd"


class Utf8:
    """Decodes the blocks of one file in order, adding to `counts.replaced_characters`."""

    def __init__(self, path: str, remedy: str, counts: ReadCounts) -> None:
        self._path, self._remedy, self._counts = path, remedy, counts
        self._characters = self._replaced = 0
        self._first = ""  # the first replaced byte, with its position

    def decode(self, block: bytes, offset: int = 0, record: str = "", nul: bool = True) -> str:
        """The block as text; if `nul` is false, NUL bytes are replaced like invalid UTF-8.

        `offset` and `record` (such as `row 3, `) say where the block begins. Raises ValueError as `finish` does once
        the rest of the file cannot bring the share below the limit.
        """
        try:
            text, replaced = block.decode(), 0
        except UnicodeDecodeError as error:
            text = block.decode(errors="replace")
            replaced = text.count(_REPLACEMENT) - block.count(_REPLACEMENT.encode())  # the file may have some itself
            at = f"at {record}offset {offset + error.start}"
            self._first = self._first or f"not UTF-8, byte 0x{block[error.start]:02x} {at} is {error.reason}"
        if not nul and "\0" in text:
            first = offset + block.index(b"\0")
            self._first = self._first or f"not a text file, it has a NUL byte at {record}offset {first}"
            replaced += text.count("\0")
            text = text.replace("\0", _REPLACEMENT)
        self._characters += len(text)
        if replaced:
            self._replaced += replaced
            self._counts.replaced_characters += replaced
            self._judge(JUDGED_EARLY)
        return text

    def finish(self) -> None:
        """Raise ValueError naming file and first offset if more than `MOST_REPLACED` of the text was replaced."""
        self._judge(1)

    def _judge(self, least: int) -> None:
        if self._replaced > MOST_REPLACED * max(self._characters, least):
            raise ValueError(
                f"{self._path}: {self._first}, one of {self._replaced:,} among {self._characters:,} characters; "
                f"{self._remedy}"
            )


@dataclass
class ReadCounts:
    """What reading a source found; readers add to it, and it is complete when all documents have been read."""

    documents: int = 0  # with text; one read in parts counts once
    characters: int = 0
    empty_documents: int = 0  # without text, left out
    split_documents: int = 0  # longer than DOCUMENT_CAP, read in parts and stored as one document
    divided_works: int = 0  # long documents of a small corpus, of which several were made
    pieces: int = 0  # the documents that were made of them
    cut_paragraphs: int = 0  # longer than DOCUMENT_CAP, cut at a space
    cut_lines: int = 0  # lines too long to hold, cut at a space
    unterminated_documents: int = 0  # wikiextractor: no </doc> before the next <doc> or the end of the file
    lines_outside_documents: int = 0  # wikiextractor: text that belongs to no document, left out
    unreadable_modules: int = 0  # docs: not valid in this version of Python
    replaced_characters: int = 0  # invalid UTF-8, NUL bytes and lone surrogates in JSON, now U+FFFD

    def add(self, other: ReadCounts) -> None:
        """Add the counts of another file to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
