"""Split large text files into spans of bytes, so that several processes can read one file.

A plain file is split anywhere: the reader of a span begins and ends at the end of a record (`read_lines`). A Zstandard
file is split between its frames, if it is local and has several, as files from pzstd or in the seekable format do.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise

from bertjax.storage.lines import COMPRESSED
from bertjax.storage.remote import is_remote
from bertjax.storage.utf8 import UTF8
from bertjax.text.sources.source import SourceFile

LEAST = 64 << 20  # bytes of a file to split; smaller ones stay one unit of work, as in stores of earlier versions
LARGEST_WORK = 1 << 30  # bytes of a file that is one document; larger files become several documents

_FRAME, _SKIPPABLE, _SKIPPABLE_LAST = 0xFD2FB528, 0x184D2A50, 0x184D2A5F  # magic numbers, RFC 8878
_HEADER_BYTES = 18  # longest header of a frame
_RLE = 1  # type of a block with one byte


def split_lines(file: SourceFile, count: int, least: int = LEAST) -> list[SourceFile]:
    """Split a text file of at least `least` bytes into at most `count` spans of about equal size."""
    if file.encoding != UTF8 or file.members or file.size < least:
        return [file]
    edges = [file.size * number // count for number in range(count + 1)]
    if file.path.endswith(COMPRESSED):
        if not file.path.endswith(".zst") or is_remote(file.path):
            return [file]
        starts = [*frame_starts(file.path), file.size]
        edges = sorted({0, *(starts[bisect_left(starts, edge)] for edge in edges[1:])})
    return [replace(file, span=span) for span in pairwise(edges)] if len(edges) > 2 else [file]


def frame_starts(path: str) -> list[int]:
    """Find the first byte of each frame of a Zstandard file by its block headers; empty for a damaged file."""
    starts: list[int] = []
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        position = 0
        while position + 4 <= len(content):
            magic = int.from_bytes(content[position : position + 4], "little")
            if _SKIPPABLE <= magic <= _SKIPPABLE_LAST:
                position += 8 + int.from_bytes(content[position + 4 : position + 8], "little")
                continue
            if magic != _FRAME:
                return []
            starts.append(position)
            position = _frame_end(content, position)
        return starts if position == len(content) else []


def _frame_end(content: mmap.mmap, position: int) -> int:
    """The end of the frame at `position`; beyond the content if the frame is incomplete."""
    import zstandard

    header = content[position : position + _HEADER_BYTES]
    try:
        has_checksum = zstandard.get_frame_parameters(header).has_checksum
        position += zstandard.frame_header_size(header)
    except zstandard.ZstdError:
        return len(content) + 1
    while position < len(content):
        block = int.from_bytes(content[position : position + 3], "little")
        position += 3 + (1 if block >> 1 & 3 == _RLE else block >> 3)
        if block & 1:
            return position + 4 * has_checksum
    return len(content) + 1
