"""Read lines of text files, compressed or not, in bounded memory; errors name the file and the position."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

from bertjax.storage.remote import RemoteError, is_remote, open_bytes
from bertjax.storage.utf8 import UTF8, FileAccessError, ReadCounts, Utf8, transcode

CHUNK = 1 << 20  # bytes of text read at once
LINE_CAP = 1 << 20  # bytes; a line that exceeds it by a chunk or more is cut
RECORD_CAP = 32 << 20  # bytes of a record (a line, or a row of another format), which is never cut
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_FED = 1 << 10  # compressed bytes at once; 4 bytes of Zstandard can expand to 128 KiB, so these to at most 32 MiB
_ZSTD_WINDOW = 1 << 31  # bytes, `zstd --long=31`; memory is touched only as far as a file expands

# Bytes [start, end) of a file: whole streams of a .bz2 file, whole frames of a .zst file, or any bytes of a plain file
Span = tuple[int, int]
LINE_END = re.compile(rb"\n")
BLANK_LINE = re.compile(rb"\n\r?\n")
_OVERLAP = 2  # last bytes of a chunk, with which the end of a record may begin
_FILE_END = 1 << 62


def read_lines(
    path: str,
    on_cut: Callable[[int], object],
    cap: int = LINE_CAP,
    counts: ReadCounts | None = None,
    span: Span | None = None,
    encoding: str = UTF8,
    record_end: re.Pattern[bytes] | None = None,
) -> Iterator[str]:
    """Yield the lines of a text file without their ends (LF, CRLF or CR), decompressed by suffix.

    A line of more than `cap` + `CHUNK` bytes is never held in memory: `on_cut` gets its number (from 1), and pieces of
    at most `cap` bytes are yielded, cut at spaces if there are any; if `on_cut` returns True, an empty line is yielded
    instead. The cuts depend on the text, not on its compression. With `record_end`, a span yields whole records: from
    the first end of a record in it, or the beginning of the file, to the first end of a record after it. NUL bytes and
    invalid UTF-8 become U+FFFD, counted in `counts`. Raises ValueError naming the file and the byte offset in the
    decompressed text if there are more of them than `Utf8` accepts, and for damaged compressed data.
    """
    name = path if span is None else f"{path}, bytes {span[0]} to {span[1]}"
    remedy = _remedy(path) if encoding == UTF8 else "correct data.encoding, or leave the file out of the source"
    utf8 = Utf8(name, remedy, ReadCounts() if counts is None else counts, encoding)
    offset, number, rest, reported, is_left_out = 0, 1, b"", 0, False
    chunks = read_chunks(path, name, span)
    if span and record_end:
        chunks = _whole_records(chunks, read_chunks(path, name, (span[1], _FILE_END)), span[0] == 0, record_end)
    for chunk in chunks if encoding == UTF8 else transcode(chunks, name, encoding):
        end = chunk.rfind(b"\n") + 1
        if end:
            lines = _decode(utf8, rest + chunk[:end], offset).split("\n")
            del lines[-1]
            if is_left_out:
                lines[0], is_left_out = "", False
            yield from lines
            offset, number, rest = offset + len(rest) + end, number + len(lines), chunk[end:]
        else:
            rest += chunk
        while len(rest) > cap:
            if reported != number:
                is_left_out = on_cut(number) is True
                reported = number
            if is_left_out:
                offset, rest = offset + len(rest), b""
                break
            end = _cut(rest, cap)
            yield from _decode(utf8, rest[:end], offset).split("\n")
            offset, rest = offset + end, rest[end:]
    if rest and not is_left_out:
        yield from _decode(utf8, rest, offset).split("\n")
    utf8.finish()


def _whole_records(
    inside: Iterator[bytes], after: Iterator[bytes], is_first: bool, record_end: re.Pattern[bytes]
) -> Iterator[bytes]:
    """Yield a span's chunks from the first end of a record in it, or its beginning, to the first one after it.

    Adjacent spans then yield every record once: a record that crosses an edge, or begins there, is in the earlier span.
    """
    tail, is_skipping = b"", not is_first
    for chunk in inside:
        if not is_skipping:
            yield chunk
            continue
        tail = tail[-_OVERLAP:] + chunk
        if match := record_end.search(tail):
            is_skipping = False
            yield tail[match.end() :]
    begin = 0
    if is_skipping:  # no end of a record lies within the span, but one may begin there
        tail, first = tail[-_OVERLAP:], next(after, b"")
        match = record_end.search(tail + first)
        if not match or match.start() >= len(tail):
            return
        begin, after = match.end() - len(tail), itertools.chain([first], after)
    tail = b""
    for chunk in after:
        if match := record_end.search(tail + chunk):
            yield chunk[begin : match.end() - len(tail)]
            return
        yield chunk[begin:]
        begin, tail = 0, (tail + chunk)[-_OVERLAP:]


def read_table(
    content: bytes, origin: str, *, called: str, form: str, is_row: Callable[[list[str]], bool]
) -> dict[str, list[str]]:
    """Parse tab-separated lines into a map from the first field to the others; `origin` names the file in messages.

    Raises ValueError naming the line if it is not UTF-8 (`called` is the kind of file), if its fields are not a row
    (`form` describes one), or if its first field repeats.
    """
    table: dict[str, list[str]] = {}
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).removesuffix(b"\n").split(b"\n"), 1):
        location = f"{origin}, line {number}"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{location}: not UTF-8 at byte {error.start}; {called} is UTF-8 text") from None
        fields = text.removesuffix("\r").split("\t")
        if not is_row(fields):
            raise ValueError(f"{location}: {text[:80]!r}; a line has {form} between")
        if fields[0] in table:
            raise ValueError(f"{location}: {fields[0]!r} already has a line; remove one of them")
        table[fields[0]] = fields[1:]
    return table


def refuse_record(reason: str, records: int = 1) -> None:
    """Raise ValueError for records that cannot be read; the default for readers that may leave them out instead."""
    raise ValueError(reason) from None


def csv_records(
    path: object, lines: Iterable[str], on_bad: Callable[[str, int], None] = refuse_record, **dialect: Any
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, fields) of each CSV record; a blank line has no fields.

    `dialect` has the options of `csv.reader`. A malformed record is left out, and `on_bad` gets the reason, with `path`
    and the line, and the number of lines, since a stray quotation mark joins all rows up to the next mark.
    """
    csv.field_size_limit(RECORD_CAP)  # texts may exceed the default, 128 KiB
    reader = csv.reader(lines, strict=True, **dialect)
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            on_bad(
                f"{path}:{reader.line_num}: bad CSV ({error}) in the row of line {first}; put fields with a "
                "separator, quotation mark or line break between quotation marks, and double quotation marks in them",
                max(reader.line_num - first + 1, 1),
            )
            continue
        if fields is None:
            return
        yield first, fields


def _decode(utf8: Utf8, block: bytes, offset: int) -> str:
    text = utf8.decode(block, offset, nul=False)
    if offset == 0:
        text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _remedy(path: str) -> str:
    if path.endswith(COMPRESSED):
        return "the compressed data may be damaged (test them with the compressor's -t)"
    return (
        "convert the file (iconv -f {encoding} -t utf-8) or leave it out of the source; "
        f"compressed files are recognised by {', '.join(COMPRESSED)}, archives must be unpacked"
    )


def _cut(line: bytes, cap: int) -> int:
    end = line.rfind(b" ", 0, cap) + 1
    if not end:
        end = cap
        while end > cap - 4 and line[end] & 0xC0 == 0x80:  # never inside a character
            end -= 1
    return end


def read_chunks(path: str, name: str, span: Span | None = None) -> Iterator[bytes]:
    """Yield the decompressed bytes in chunks of `CHUNK`; only the last may be shorter.

    `name` names the file in messages. Raises ValueError for damaged compressed data, FileAccessError for an OSError.
    """
    size = 0
    try:
        with _open(path, span) as stream:
            while chunk := stream.read(CHUNK):
                size += len(chunk)
                yield chunk
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        what = str(error).strip().rstrip(".")
        raise ValueError(
            f"{name}: the compressed data are damaged or cut off after {size} bytes of text ({what}); get the file "
            "again"
        ) from None
    except RemoteError:
        raise
    except OSError as error:
        raise FileAccessError(f"{name}: cannot be read: {error.strerror} (after {size} bytes of text)") from None


def whole_content(path: str) -> bytes:
    """Read a whole file that cannot be streamed, decompressed by suffix."""
    return b"".join(read_chunks(path, path))


def _open(path: str, span: Span | None) -> BinaryIO | gzip.GzipFile:
    if path.endswith(".gz"):
        return gzip.open(open_bytes(path) if is_remote(path) else path)
    if path.endswith(".bz2"):
        file = open_bytes(path, 0) if span is None else _Slice(path, span)
        return io.BufferedReader(_Frames(file, bz2.BZ2Decompressor, OSError), CHUNK)
    if path.endswith(".xz"):
        return io.BufferedReader(_Frames(open_bytes(path, 0), lzma.LZMADecompressor, lzma.LZMAError), CHUNK)
    if path.endswith(".zst"):
        import zstandard

        file = open_bytes(path, 0) if span is None else _Slice(path, span)
        begin = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj
        return io.BufferedReader(_Frames(file, begin, zstandard.ZstdError), CHUNK)
    return open_bytes(path) if span is None else io.BufferedReader(_Slice(path, span), CHUNK)


class _Slice(io.RawIOBase):
    """A span of a file as a raw stream."""

    def __init__(self, path: str, span: Span) -> None:
        self._file = open_bytes(path, 0)
        self._file.seek(span[0])
        self._remaining = span[1] - span[0]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(min(len(buffer), self._remaining))
        self._remaining -= len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Frames(io.RawIOBase):
    """Decompress a file of any number of frames (bz2 and xz call them streams).

    Needed because the libraries' readers do not detect a truncated Zstandard file, and silently drop the rest of a bz2
    or xz file after damage at the beginning of a stream.
    """

    def __init__(self, file: BinaryIO | _Slice, begin: Callable[[], Any], error: type[Exception]) -> None:
        self._file, self._begin, self._error = file, begin, error
        self._frame = begin()
        self._fed = False  # whether the current frame has begun
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._output:
            if not self._fill():
                return 0
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def _fill(self) -> bool:
        self._input = self._input or self._file.read(_FED)
        if not self._input:
            if self._fed:
                raise EOFError("the last frame is incomplete")
            return False
        if not self._fed:
            self._input = self._input.lstrip(b"\0")  # padding of .xz files
            if not self._input:
                return True
        try:
            self._output = memoryview(self._frame.decompress(self._input))
        except self._error as error:
            raise EOFError(str(error)) from None
        self._fed, self._input = True, b""
        if self._frame.eof:
            self._input, self._frame, self._fed = self._frame.unused_data, self._begin(), False
        return True

    def close(self) -> None:
        self._file.close()
        super().close()
