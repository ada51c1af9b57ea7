"""The sizes of a Parquet file's pages, read before a page is: pyarrow decompresses a page whole, whatever its size.

The footer and the headers of pages are structs of Thrift's compact protocol; the numbers of their fields are those of
parquet-format's parquet.thrift. A page's header is believed by pyarrow, the sums in the footer are not, so hostile
files are identified by the headers. Of remote files, where each header is a request, the sums of the footer are used
as long as they are small: no page is larger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from bertjax.storage.remote import RemoteError, bytes_of, is_remote, open_bytes

MOST_PAGE_BYTES = 256 << 20  # decompressed; pyarrow writes 1 MiB or 1,024 rows

_SMALL_SUM = 64 << 20  # below what a page or a dictionary may have
_FOOTER_BYTES = 64 << 20  # at most; a row group has about 200 bytes per column
_HEADER_BYTES = (1 << 10, 1 << 20)  # of a page: almost always, and at most
_MOST_DEPTH = 16
_ROW_GROUPS, _COLUMNS, _META_DATA = 4, 1, 3
_PATH, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 3, 6, 7, 9, 11
_PAGE_TYPE, _PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 1, 2, 3
_DICTIONARY_PAGE = 2


class Pages(NamedTuple):
    """The largest page, and the largest dictionary, of some columns; in bytes, decompressed."""

    largest: int
    dictionary: int


def largest_pages(path: str, fields: Collection[str]) -> Pages:
    """Of the columns of these names. Raises ValueError, without the file's name, for a file that is damaged there."""
    sizes = Pages(0, 0)
    try:
        with open_bytes(path, 0) as file:
            for column in _columns(file, bytes_of(path), fields):
                known = is_remote(path) and column[_UNCOMPRESSED] <= _SMALL_SUM
                for size, is_dictionary in [_sum_of(column)] if known else _pages(file, column):
                    sizes = Pages(max(sizes.largest, size), max(sizes.dictionary, size * is_dictionary))
    except RemoteError:
        raise
    except (OSError, AttributeError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"a part of it has another form than Parquet's: {error}") from None
    return sizes


def _columns(file: BinaryIO, size: int, fields: Collection[str]) -> Iterator[dict[int, Any]]:
    """The metadata of each chunk of these columns."""
    file.seek(size - 8)
    length = int.from_bytes(file.read(4), "little")
    if length > min(size - 8, _FOOTER_BYTES):
        raise ValueError(f"its footer claims {length:,} bytes")
    file.seek(size - 8 - length)
    footer = _Compact(_read(file, length)).struct()
    for group in footer.get(_ROW_GROUPS, []):
        for chunk in group[_COLUMNS]:
            if chunk[_META_DATA][_PATH][0].decode(errors="replace") in fields:
                yield chunk[_META_DATA]


def _sum_of(column: dict[int, Any]) -> tuple[int, bool]:
    """The bytes of all pages, and whether one of them may be a dictionary."""
    return column[_UNCOMPRESSED], _DICTIONARY_OFFSET in column


def _pages(file: BinaryIO, column: dict[int, Any]) -> Iterator[tuple[int, bool]]:
    """The size of each page of a chunk, and whether it is the dictionary."""
    at = column.get(_DICTIONARY_OFFSET) or column[_DATA_OFFSET]
    end = at + column[_COMPRESSED]
    while at < end:
        header, length = _page_header(file, at)
        if min(header[_PAGE_UNCOMPRESSED], header[_PAGE_COMPRESSED]) < 0:
            raise ValueError(f"the page at byte {at:,} has a negative size")
        yield header[_PAGE_UNCOMPRESSED], header[_PAGE_TYPE] == _DICTIONARY_PAGE
        at += length + header[_PAGE_COMPRESSED]


def _page_header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The header at a byte of the file, and its length."""
    for most in _HEADER_BYTES:
        file.seek(at)
        reader = _Compact(_read(file, most))
        try:
            return reader.struct(), reader.at
        except IndexError:
            continue
    raise ValueError(f"the page at byte {at:,} has no header")


def _read(file: BinaryIO, size: int) -> bytes:
    """So many bytes, or those up to the end: an unbuffered file may give fewer at once."""
    content = b""
    while len(content) < size and (more := file.read(size - len(content))):
        content += more
    return content


class _Compact:
    """Reads Thrift's compact protocol; raises IndexError at the end of the bytes."""

    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields by their numbers: ints, bytes, lists and dicts."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = head & 15 == 1 if head & 15 in (1, 2) else self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise ValueError("its structs and lists are nested too deep")
        if kind in (1, 2, 3):
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._unsigned())
        if kind in (9, 10):
            head = self._byte()
            return [self._value(head & 15, depth + 1) for _ in range(head >> 4 if head >> 4 < 15 else self._unsigned())]
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"it has a value of type {kind}, which Parquet has not")

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _bytes(self, size: int) -> bytes:
        if size > len(self._content) - self.at:
            raise IndexError("it ends within a string")
        self.at += size
        return self._content[self.at - size : self.at]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("it has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
