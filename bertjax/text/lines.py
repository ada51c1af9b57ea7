"""Lines of text files, compressed or not, in bounded memory; what is wrong with a file is named with its place."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

CHUNK = 1 << 20  # bytes of text read at once
LINE_CAP = 1 << 20  # bytes; a line that is longer by a chunk or more is cut
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_ZSTD_FEED = 1 << 10  # compressed bytes at once: a block of 4 bytes can stand for 128 KiB, so at most 32 MiB come out


def read_lines(path: str, on_cut: Callable[[int], None], cap: int = LINE_CAP) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their ends (\\n, \\r\\n or \\r), decompressed by suffix.

    A line of more than `cap` + `CHUNK` bytes is never held: `on_cut` is told its number (from 1) and pieces of at most
    `cap` bytes, cut at a space where there is one, are yielded in its place. Where lines are cut depends on the text
    alone, not on its compression. Raises ValueError naming the file and the byte offset in the decompressed text for a
    NUL byte, invalid UTF-8, or damaged compressed data.
    """
    offset, number, rest, reported = 0, 1, b"", 0
    for chunk in _chunks(path):
        if b"\0" in chunk:
            place = offset + len(rest) + chunk.index(b"\0")
            raise ValueError(f"{path}: not a text file, it has a NUL byte at offset {place}; {_remedy(path)}")
        end = chunk.rfind(b"\n") + 1
        if end:
            block = _decode(path, rest + chunk[:end], offset)
            lines = block.split("\n")
            del lines[-1]
            yield from lines
            offset, number, rest = offset + len(rest) + end, number + len(lines), chunk[end:]
        else:
            rest += chunk
        while len(rest) > cap:
            if reported != number:
                on_cut(number)
                reported = number
            end = _cut(rest, cap)
            yield from _decode(path, rest[:end], offset).split("\n")
            offset, rest = offset + end, rest[end:]
    if rest:
        yield from _decode(path, rest, offset).split("\n")


def _decode(path: str, block: bytes, offset: int) -> str:
    try:
        text = block.decode("utf-8-sig" if offset == 0 else "utf-8")
    except UnicodeDecodeError as error:
        place = offset + error.start + (3 if offset == 0 and block.startswith(b"\xef\xbb\xbf") else 0)
        byte = error.object[error.start]
        raise ValueError(
            f"{path}: not UTF-8, byte 0x{byte:02x} at offset {place} is {error.reason}; {_remedy(path)}"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _remedy(path: str) -> str:
    if path.endswith(COMPRESSED):
        return "the compressed data may be damaged (test them with the compressor's -t)"
    return (
        "convert the file (iconv -t utf-8) or leave it out of the source; "
        f"compressed files are known by {', '.join(COMPRESSED)}, archives must be unpacked"
    )


def _cut(line: bytes, cap: int) -> int:
    end = line.rfind(b" ", 0, cap) + 1
    if not end:
        end = cap
        while end > cap - 4 and line[end] & 0xC0 == 0x80:  # never inside a character
            end -= 1
    return end


def _chunks(path: str) -> Iterator[bytes]:
    """The decompressed bytes, `CHUNK` at a time: every chunk but the last is full, however they are compressed."""
    read = 0
    try:
        with _open(path) as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
                read += len(chunk)
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, read, error) from None
    except OSError as error:
        if error.errno is None:  # bz2 has no exception of its own
            raise _damaged(path, read, error) from None
        raise ValueError(f"{path}: cannot be read: {error.strerror} (after {read} bytes of text)") from None


def _damaged(path: str, read: int, error: Exception) -> ValueError:
    what = str(error).strip().rstrip(".")
    return ValueError(
        f"{path}: the compressed data are damaged or cut off after {read} bytes of text ({what}); get the file again"
    )


def _open(path: str) -> BinaryIO:
    if path.endswith(".gz"):
        return gzip.open(path)
    if path.endswith(".bz2"):
        return bz2.open(path)
    if path.endswith(".xz"):
        return lzma.open(path)
    if path.endswith(".zst"):
        return io.BufferedReader(_ZstdStream(path), CHUNK)
    return open(path, "rb")


class _ZstdStream(io.RawIOBase):
    """A .zst file of any number of frames; unlike zstandard's own reader it notices a file that was cut off."""

    def __init__(self, path: str) -> None:
        import zstandard

        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self._error = zstandard.ZstdError
        self._begin = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._begin()
        self._fed = False  # whether the frame has begun
        self._input = self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        while not self._output:
            if not self._fill():
                return 0
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size

    def _fill(self) -> bool:
        self._input = self._input or self._file.read(_ZSTD_FEED)
        if not self._input:
            if self._fed:
                raise EOFError("the last frame is not complete")
            return False
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
