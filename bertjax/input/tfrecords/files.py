"""TFRecord files: where their records lie, and the contents of some of them, with no byte unchecked.

A record is framed by its length (uint64, little endian) and the length's checksum before its content, and the content's
checksum after it. Both are CRC-32C, masked so that what holds a checksum can have one (TensorFlow's record_writer.h).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

LONGEST = 1 << 16  # bytes of content; a row of 4,096 tokens has half of that

_HEAD, _TAIL = 12, 4  # bytes of the frame before and after the content
_LENGTH = struct.Struct("<Q")
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, its bits reversed
_MASK = np.uint32(0xA282EAD8)
_GZIP = b"\x1f\x8b"


def scan(pieces: Iterable[bytes], name: str) -> Iterator[tuple[np.ndarray, list[bytes]]]:
    """Go through a file that comes in pieces: the records that end in each, as where they begin and their contents.

    The first is int64 [n + 1], its last entry where the next record begins. Raises ValueError naming the file, the
    record (from 0) and its first byte for one that is damaged, cut off, empty or longer than `LONGEST`.
    """
    rest, begun, number = b"", 0, 0
    for piece in pieces:
        block = rest + piece
        edges = _edges(block)
        frames = [block[begin:end] for begin, end in pairwise(edges)]
        for bad in damaged(frames):
            raise ValueError(
                f"{_location(name, number + bad, begun + edges[bad])}: damaged (CRC-32C); get the file again"
            )
        rest, number, begun = block[edges[-1] :], number + len(frames), begun + edges[-1]
        if len(rest) >= _HEAD and not 0 < _size(rest) <= LONGEST:
            raise ValueError(f"{_location(name, number, begun)}: {_what_is_wrong(rest)}")
        yield np.array(edges, np.int64) - edges[-1] + begun, contents(frames)
    if rest:
        raise ValueError(f"{_location(name, number, begun)}: the file ends inside it; get the file again")


def read_frames(path: str, begin: Sequence[int], end: Sequence[int]) -> list[bytes]:
    """The bytes of records with their frames, by where they lie in the file."""
    file = os.open(path, os.O_RDONLY)
    try:
        return [os.pread(file, stop - start, start) for start, stop in zip(begin, end, strict=True)]
    finally:
        os.close(file)


def contents(frames: Sequence[bytes]) -> list[bytes]:
    """What is in records that are not damaged."""
    return [frame[_HEAD:-_TAIL] for frame in frames]


def damaged(frames: Sequence[bytes]) -> list[int]:
    """Which records differ from their stored length or checksums, in order."""
    is_whole = [len(frame) > _HEAD + _TAIL and len(frame) == _HEAD + _size(frame) + _TAIL for frame in frames]
    whole = [frame for frame, is_one in zip(frames, is_whole, strict=True) if is_one]
    is_right = np.array(is_whole, bool)
    if whole:
        stored = np.frombuffer(b"".join(frame[8:12] + frame[-_TAIL:] for frame in whole), "<u4").reshape(-1, 2)
        found = masked_crc32c([frame[:8] for frame in whole]), masked_crc32c(contents(whole))
        is_right[is_right] = (stored == np.stack(found, axis=1)).all(axis=1)
    return np.flatnonzero(~is_right).tolist()


def masked_crc32c(parts: Sequence[bytes]) -> np.ndarray:
    """The checksums that TFRecord files hold, uint32 [n], of n parts of a byte or more each.

    A CRC is linear: it is the sum (exclusive or) of what each byte adds, by itself and by how many come after it, and
    of what is left of the register's first content.
    """
    sizes = np.array([len(part) for part in parts])
    ends = np.cumsum(sizes)
    by_byte, by_register = _crc_tables(1 << int(sizes.max() - 1).bit_length())
    cell = np.repeat((ends - 1).astype(np.int32), sizes)  # of a byte's row of the table, then of the byte
    cell -= np.arange(len(cell), dtype=np.int32)
    cell <<= 8
    cell += np.frombuffer(b"".join(parts), np.uint8)
    crc = ~(np.bitwise_xor.reduceat(by_byte.take(cell), ends - sizes) ^ by_register[sizes])
    return ((crc >> 15) | (crc << 17)) + _MASK


@lru_cache
def _crc_tables(longest: int) -> tuple[np.ndarray, np.ndarray]:
    """What a byte adds that n bytes follow, uint32 [longest, 256]; the register after n bytes, uint32 [longest + 1]."""
    step = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        step = (step >> 1) ^ (step & 1) * np.uint32(_CASTAGNOLI)
    by_byte, by_register = np.empty((longest, 256), np.uint32), np.empty(longest + 1, np.uint32)
    by_byte[0], by_register[0] = step, 0xFFFFFFFF
    for table in (by_byte, by_register):
        for n in range(1, len(table)):
            table[n] = (table[n - 1] >> 8) ^ step[table[n - 1] & 0xFF]
    return by_byte, by_register


def _edges(block: bytes) -> list[int]:
    """Where the whole records at the beginning of a block begin, and where the last of them ends."""
    edges = [0]
    while (begin := edges[-1]) + _HEAD <= len(block) and 0 < (size := _size(block, begin)) <= LONGEST:
        if begin + _HEAD + size + _TAIL > len(block):
            break
        edges.append(begin + _HEAD + size + _TAIL)
    return edges


def _size(frame: bytes, begin: int = 0) -> int:
    """The length that a record says it has, in bytes of content."""
    return _LENGTH.unpack_from(frame, begin)[0]


def _location(name: str, number: int, begin: int) -> str:
    return f"{name}, record {number} at byte {begin}"


def _what_is_wrong(frame: bytes) -> str:
    """What to say of a record whose length cannot be."""
    if masked_crc32c([frame[:8]]).tobytes() == frame[8:12]:
        return f"it has {_size(frame):,} bytes, and a row of BERT has 1 to {LONGEST:,}; is it other data?"
    if frame.startswith(_GZIP):
        return "the file is compressed; give it a name that ends in .gz"
    return "its length is damaged (CRC-32C); get the file again, if it is a TFRecord file"
