"""Bytes to text by one rule for every kind of source: what is no UTF-8 becomes U+FFFD, counted, if it is little."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

MOST_REPLACED = 0.01  # share of a file's characters; with more of them it is no UTF-8 text at all
JUDGED_EARLY = 16 << 20  # characters; a file is given up before its end if it has too many replaced even for these

_REPLACEMENT = "\ufffd"


class Utf8:
    """Decodes the blocks of one file in order, adding to `counts.replaced_characters`."""

    def __init__(self, path: str, remedy: str, counts: ReadCounts) -> None:
        self._path, self._remedy, self._counts = path, remedy, counts
        self._characters = self._replaced = 0
        self._first = ""  # the first thing that is no text, with its place

    def decode(self, block: bytes, offset: int = 0, record: str = "", nul: bool = True) -> str:
        """The block as text; where `nul` is false, a NUL byte is no more text than invalid UTF-8.

        `offset` and `record` (such as `row 3, `) tell where the block begins. Raises ValueError as `finish` does when
        no more text could change it.
        """
        try:
            text, replaced = block.decode(), 0
        except UnicodeDecodeError as error:
            text = block.decode(errors="replace")
            replaced = text.count(_REPLACEMENT) - block.count(_REPLACEMENT.encode())  # the file may have some itself
            at = f"at {record}offset {offset + error.start}"
            self._first = self._first or f"not UTF-8, byte 0x{block[error.start]:02x} {at} is {error.reason}"
        if not nul and "\0" in text:
            place = offset + block.index(b"\0")
            self._first = self._first or f"not a text file, it has a NUL byte at {record}offset {place}"
            replaced += text.count("\0")
            text = text.replace("\0", _REPLACEMENT)
        self._characters += len(text)
        if replaced:
            self._replaced += replaced
            self._counts.replaced_characters += replaced
            self._judge(JUDGED_EARLY)
        return text

    def finish(self) -> None:
        """Raise ValueError naming file and place of the first if more than `MOST_REPLACED` of the text was replaced."""
        self._judge(1)

    def _judge(self, least: int) -> None:
        if self._replaced > MOST_REPLACED * max(self._characters, least):
            raise ValueError(
                f"{self._path}: {self._first}, one of {self._replaced:,} among {self._characters:,} characters; "
                f"{self._remedy}"
            )


@dataclass
class ReadCounts:
    """What reading met; the reader adds to it as it goes, so it is complete once the documents are exhausted."""

    documents: int = 0
    characters: int = 0
    empty_documents: int = 0  # had no text and were left out
    split_documents: int = 0  # longer than DOCUMENT_CAP, read in parts and stored as one document
    cut_paragraphs: int = 0  # longer than DOCUMENT_CAP, cut at a space
    cut_lines: int = 0  # lines too long to hold, cut at a space
    unterminated_documents: int = 0  # wikiextractor: no </doc> before the next <doc> or the end of the file
    lines_outside_documents: int = 0  # wikiextractor: text that belongs to no document, left out
    unreadable_modules: int = 0  # docs: not Python as this one knows it
    replaced_characters: int = 0  # no UTF-8, NUL bytes, of jsonl escaped lone surrogates; U+FFFD stands for them

    def add(self, other: ReadCounts) -> None:
        """Add the counts of another file to these."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
