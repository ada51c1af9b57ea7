"""Decode text: replace invalid bytes by U+FFFD and count them; refuse a file with more than 1 % of them."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

UTF8 = "utf-8"
MOST_REPLACED = 0.01  # share of a file's characters that may be replaced; with more, the file is not UTF-8 text
JUDGED_EARLY = 16 << 20  # characters; a file is refused early if its replacements exceed the share of this many

LISTED_RECORDS = 5  # of the records that were left out

_MOST_BAD, _MOST_BAD_SHARE = 100, 0.1  # records of a file that may be left out; with more, its kind must be wrong
_REPLACEMENT = "\ufffd"
_SAMPLE = 32 << 10  # bytes before and after the first invalid one, for guessing the encoding
_JUDGED = 16 << 20  # bytes to read at most for judging a text's encoding
_MARKS = (
    (codecs.BOM_UTF8, UTF8),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WESTERN = "cp1252"  # the most frequent alternative
_FEWEST_IN_UTF8 = 10  # characters beyond ASCII; a few bytes of another encoding can be valid UTF-8 by chance


class UnreadableFileError(ValueError):
    """A file cannot be read as its kind of text."""


class FileAccessError(UnreadableFileError):
    """The storage did not return a file's bytes (an I/O error, no permission); another attempt may succeed."""


class NotTextError(UnreadableFileError):
    """A file is not text in the expected encoding; `likely` is the encoding that it seems to have, or ''."""

    likely = ""


class Utf8:
    """Decodes the blocks of one file in order, adding to `counts.replaced_characters`.

    `encoding` is the original encoding of transcoded blocks, for messages.
    """

    def __init__(self, path: str, remedy: str, counts: ReadCounts, encoding: str = UTF8) -> None:
        self._path, self._remedy, self._counts, self._encoding = path, remedy, counts, encoding
        self._characters = self._replaced = 0
        self._first = ""  # the first replaced byte, with its position
        self._sample = b""  # the bytes around it

    def decode(self, block: bytes, offset: int = 0, record: str = "", nul: bool = True) -> str:
        """Decode a block; if `nul` is false, NUL bytes are replaced like invalid UTF-8.

        `offset` and `record` (such as `row 3, `) locate the block in messages. Raises NotTextError like `finish` as
        soon as more than `MOST_REPLACED` of `JUDGED_EARLY` characters are replaced.
        """
        try:
            text, replaced = block.decode(), 0
        except UnicodeDecodeError as error:
            text = block.decode(errors="replace")
            replaced = text.count(_REPLACEMENT) - block.count(_REPLACEMENT.encode())  # the file may contain U+FFFD
            at = f"at {record}offset {offset + error.start}"
            self._keep(block, error.start, f"not UTF-8, byte 0x{block[error.start]:02x} {at} is {error.reason}")
        if self._encoding != UTF8 and _REPLACEMENT in text:
            replaced += text.count(_REPLACEMENT)
            at = self._characters + text.index(_REPLACEMENT)
            self._first = self._first or f"not {self._encoding}, invalid bytes after {at:,} characters"
        if not nul and "\0" in text:
            first = block.index(b"\0")
            self._keep(block, first, f"not a text file, it has a NUL byte at {record}offset {offset + first}")
            replaced += text.count("\0")
            text = text.replace("\0", _REPLACEMENT)
        self._characters += len(text)
        if replaced:
            self._replaced += replaced
            self._counts.replaced_characters += replaced
            self._judge(JUDGED_EARLY)
        return text

    def finish(self) -> None:
        """Raise NotTextError naming file and first offset if more than `MOST_REPLACED` of the text was replaced."""
        self._judge(1)

    def _keep(self, block: bytes, at: int, what: str) -> None:
        if not self._first:
            self._first = what
            # Take whole lines, so that no character is cut.
            start = block.rfind(b"\n", max(0, at - _SAMPLE), at) + 1 if at > _SAMPLE else 0
            end = block.rfind(b"\n", at, at + _SAMPLE) + 1 if len(block) > at + _SAMPLE else len(block)
            self._sample = block[start : end or at + _SAMPLE]

    def _judge(self, least: int) -> None:
        if self._replaced > MOST_REPLACED * max(self._characters, least):
            likely = likely_encoding(self._sample) if self._sample else ""
            what = f"{self._first}, one of {self._replaced:,} among {self._characters:,} characters"
            if likely:
                what += f"; it is likely {likely}"
            remedy = self._remedy.replace(" -f {encoding}", f" -f {likely}" if likely else "")
            error = NotTextError(f"{self._path}: {what}; {remedy}")
            error.likely = likely
            raise error


def encoding_name(name: str) -> str:
    """Python's name of an encoding; ASCII and UTF-8 with a byte order mark count as UTF-8."""
    name = codecs.lookup(name).name
    return UTF8 if name in ("ascii", "utf-8-sig") else name


def likely_encoding(sample: bytes) -> str:
    """Guess the encoding of text (a name for Python and iconv); '' for bytes that do not look like text."""
    from charset_normalizer import from_bytes

    matches = list(from_bytes(sample))
    if not matches:
        return ""
    best = matches[0]
    if any(_WESTERN in match.could_be_from_charset for match in matches if match.chaos <= best.chaos):
        return _WESTERN
    return codecs.lookup(best.encoding).name


def byte_order_mark(content: bytes) -> str:
    """The encoding that the content's byte order mark denotes; '' without one."""
    return next((encoding for mark, encoding in _MARKS if content.startswith(mark)), "")


def detect_encoding(chunks: Iterable[bytes]) -> str:
    """Detect the encoding of a text: by its byte order mark, else UTF-8 if almost all of it is valid, else a guess.

    Reads at most about `_JUDGED` bytes. The guess uses the lines that are not ASCII.
    """
    decoder = codecs.getincrementaldecoder(UTF8)()
    lines, bytes_read = b"", 0
    is_utf8 = True
    for chunk in chunks:
        if not bytes_read and (marked := byte_order_mark(chunk)):
            return marked
        bytes_read += len(chunk)
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError:
            is_utf8 = False
            decoder.reset()
        if len(lines) < _SAMPLE:
            lines += b"".join(line for line in chunk.splitlines(keepends=True) if not line.isascii())
        if bytes_read > _JUDGED:
            break
    if is_utf8:
        return UTF8
    sample = lines[:_SAMPLE]
    text = sample.decode(errors="replace")
    invalid = text.count(_REPLACEMENT)
    # Valid characters beyond ASCII are at least as many as invalid bytes; the sum counts both.
    if sum(character > "\x7f" for character in text) >= 2 * invalid:
        return UTF8
    return likely_encoding(sample) or UTF8


def transcode(chunks: Iterable[bytes], path: str, encoding: str) -> Iterator[bytes]:
    """Transcode the chunks of a file to UTF-8; invalid bytes become U+FFFD.

    Raises NotTextError for a file that already is UTF-8.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    for number, chunk in enumerate(chunks):
        if number == 0 and _is_clearly_utf8(chunk):
            raise NotTextError(
                f"{path}: UTF-8, but data.encoding is {encoding}; give files in one encoding, or convert the others to "
                f"UTF-8 (iconv -f {encoding} -t utf-8)"
            )
        yield decoder.decode(chunk).encode(errors="replace")
    yield decoder.decode(b"", final=True).encode()


def _is_clearly_utf8(chunk: bytes) -> bool:
    if chunk.startswith(codecs.BOM_UTF8):
        return True
    text, _ = codecs.utf_8_decode(chunk, "replace", False)  # the last character may be cut
    return _REPLACEMENT not in text and sum(character > "\x7f" for character in text) >= _FEWEST_IN_UTF8


@dataclass
class ReadCounts:
    """Counts of what reading a source yielded or changed; readers add to them while documents are read."""

    documents: int = 0  # with text; a document read in parts counts once
    characters: int = 0
    empty_documents: int = 0  # without text, left out
    split_documents: int = 0  # longer than DOCUMENT_CAP, read in parts and stored as one document
    divided_works: int = 0  # long documents of a small corpus that were divided
    pieces: int = 0  # documents that they were divided into
    cut_paragraphs: int = 0  # longer than DOCUMENT_CAP, cut at a space
    cut_lines: int = 0  # overlong lines, cut at a space
    unterminated_documents: int = 0  # wikiextractor: no </doc> before the next <doc> or the end of the file
    lines_outside_documents: int = 0  # wikiextractor: text that belongs to no document, left out
    unreadable_modules: int = 0  # docs: not valid in this version of Python
    lower_case_letters: int = 0  # fasta: read as upper case
    stop_marks: int = 0  # fasta: a final *, left out
    replaced_characters: int = 0  # invalid UTF-8, NUL bytes and lone surrogates in JSON, now U+FFFD
    bad_records: int = 0  # that cannot be read, left out as data.bad_records allows
    bad_examples: list[str] = dataclasses.field(default_factory=list)  # reasons of the first `LISTED_RECORDS`

    @property
    def records(self) -> int:
        """All records, or documents of files that have no records."""
        return self.documents + self.empty_documents + self.bad_records

    def add(self, other: ReadCounts) -> None:
        """Add the counts of another file."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        del self.bad_examples[LISTED_RECORDS:]

    def leave_out(self, reason: str, records: int = 1) -> None:
        """Count records that are left out. Raises ValueError if most records seem to be bad."""
        self.bad_records += records
        if len(self.bad_examples) < LISTED_RECORDS:
            self.bad_examples.append(reason)
        if self.bad_records > _MOST_BAD and self.bad_records > _MOST_BAD_SHARE * self.records:
            raise ValueError(
                f"{self.bad_records:,} of the first {self.records:,} records cannot be read, too many to leave out "
                f"(data.bad_records): {self.bad_examples[0]}"
            )

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON; includes bad records only if there are any."""
        omitted = () if self.bad_records else ("bad_records", "bad_examples")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in omitted}
