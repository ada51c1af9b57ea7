"""Cut a multistream dump, so that several processes can read one file.

Such a dump (`*-pages-articles-multistream.xml.bz2`) is many bz2 streams in one file: the first holds the part before
the pages, each of the others about a hundred whole pages. bzip2 starts a stream on a whole byte.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import BinaryIO

from bertjax.storage.remote import open_bytes
from bertjax.text.sources.source import SourceFile

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # the magic of a stream and of its first block (0x314159265359)
_STREAM_BYTES = 10
_WINDOW = 1 << 20  # bytes to search at once
_FED = 1 << 14  # compressed bytes to decompress at once; some streams are smaller
_HEAD_CAP = 1 << 20  # most bytes of text in the first stream; the largest editions have 4 KB
_PAGE = re.compile(rb"\s*<page>")
_PAGE_OR_END = re.compile(rb"\s*<(?:page|/mediawiki)>")


def split(file: SourceFile, count: int) -> list[SourceFile]:
    """Split a multistream dump into `count` spans of bytes, each readable alone; returns any other file unchanged."""
    if not file.path.endswith(".bz2") or not is_multistream(file.path):
        return [file]
    edges = [file.size * number // count for number in range(count + 1)]
    return [replace(file, span=span) for span in pairwise(edges)]


def is_multistream(path: str) -> bool:
    """Whether the file is a multistream dump, by its first two streams."""
    with open_bytes(path) as file:
        first = bz2.BZ2Decompressor()
        size = 0
        try:
            while not first.eof and size < _HEAD_CAP:
                data = file.read(_FED)
                if not data:
                    return False
                size += len(first.decompress(data, _HEAD_CAP))
        except OSError:
            return False
        return first.eof and bool(_PAGE.match(_beginning(file, file.tell() - len(first.unused_data))))


def cut_at(path: str, position: int) -> int:
    """The first byte at or after `position` at which the dump can be cut; the file's size if there is none.

    This is the start of a stream that begins with a page or the end of the dump. Compressed data may contain a stream's
    magic bytes by chance, but do not decompress to such text.
    """
    with open_bytes(path) as file:
        if position == 0:
            return 0
        for start in _streams(file, position):
            if _PAGE_OR_END.match(_beginning(file, start)):
                return start
        return file.seek(0, 2)


def _streams(file: BinaryIO, position: int) -> Iterator[int]:
    """Yield possible beginnings of streams, from `position` on."""
    while True:
        file.seek(position)
        window = file.read(_WINDOW)
        yield from (position + match.start() for match in _STREAM.finditer(window))
        if len(window) < _WINDOW:
            return
        position += _WINDOW - _STREAM_BYTES + 1


def _beginning(file: BinaryIO, start: int) -> bytes:
    """The first bytes of text in the stream at `start`; empty if it is damaged or not a stream."""
    file.seek(start)
    stream = bz2.BZ2Decompressor()
    text = b""
    try:
        while len(text) < 64 and not stream.eof:
            data = file.read(_FED)
            if not data:
                break
            text += stream.decompress(data, 64)
    except OSError:
        return b""
    return text
