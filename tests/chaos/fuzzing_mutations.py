"""Mutations of a file's bytes or of its structure, whose checksums are then recomputed."""

from __future__ import annotations

import bz2
import copy
import gzip
import hashlib
import io
import json
import lzma
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bertjax.text.store.manifest import content_fingerprint, json_sha256

Mutation = Callable[[bytes, Random, Sequence[bytes]], bytes]  # content, randomness, other contents to splice from

MOST_BYTES = 1 << 20  # of a mutated input
_SIZES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 48, (1 << 63) - 1, 1 << 63)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 3, 0.5, -0.0, 1e30, 1e400, float("nan"), 2**31, 2**63, 10**40),
    *("", "x", "..", "../../../etc/passwd", "/etc/passwd", "\0", "\x1b[2J", "\ud800", "a" * 5000, "<script>", "text"),
    *([], [[1]], ["a"], [0, 1], [-1], {}, {"a": 1}, {"": {}}, {"0": "a"}),
)
_STRINGS = (
    *(b"", b"\0", b"\n", b"\r", b"\t", b" ", b",", b'"', b"'", b"{", b"[", b"\\", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1b[2J", b"../../x", b"/etc/passwd", b"<!DOCTYPE a [<!ENTITY b 'c'>]>"),
    *(b"<page>", b"</page>", b"[[", b"]]", b"{{", b"}}", b"'''", b"<ref", b"-1", b"1e999", b"9" * 5000, b"nan", b"&b;"),
)  # fmt: skip


def mutated_bytes(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change bits, bytes, numbers, ranges or the length, one to eight times."""
    changed = bytearray(content)
    for _ in range(1 << draw.randrange(4)):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice((1, 2, 4, 8, 16, 64, 512))
        kind = draw.randrange(9)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = draw.choice((0, 1, 0x20, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 2:
            del changed[at : at + size]
        elif kind == 3:
            changed[at:at] = draw.choice(_STRINGS)
        elif kind == 4:
            width = draw.choice((2, 4, 8))
            number = draw.choice(_SIZES) % (1 << 8 * width)
            changed[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))
        elif kind == 5:
            changed[at:at] = changed[at : at + size] * draw.choice((1, 1, 1, 2, 50))
        elif kind == 6 and draw.random() < 0.3:
            del changed[at:]
        elif kind == 7 and others:
            other = draw.choice(others)
            start = draw.randrange(len(other) + 1)
            changed[at : at + size] = other[start : start + size]
        elif kind == 8:
            changed[at:at] = draw.randbytes(size)
    return bytes(changed[:MOST_BYTES])


def mutated_lines(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change whole lines, the fields in them, or bytes."""
    if draw.random() < 0.4:
        return mutated_bytes(content, draw, others)
    lines = content.split(b"\n")
    for _ in range(1 << draw.randrange(3)):
        at, kind = draw.randrange(len(lines)), draw.randrange(7)
        between = draw.choice((b"\t", b",", b" ", b":"))
        fields = lines[at].split(between)
        field = draw.randrange(len(fields))
        if kind == 0:
            lines.insert(at, draw.choice(lines))
        elif kind == 1 and len(lines) > 1:
            del lines[at]
        elif kind == 2:
            lines[at] = mutated_bytes(lines[at], draw, others)
        elif kind == 3:
            fields[field] = draw.choice(_STRINGS)
            lines[at] = between.join(fields)
        elif kind == 4:
            del fields[field]
            lines[at] = between.join(fields)
        elif kind == 5:
            fields.insert(field, draw.choice(fields))
            lines[at] = between.join(fields)
        else:
            lines[at] = lines[at][: MOST_BYTES // 100] * draw.choice((0, 2, 2, 100))
    return b"\n".join(lines)[:MOST_BYTES]


def mutated_json(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change the values and keys of a document, or its bytes."""
    tree = _document(content)
    if tree is None or draw.random() < 0.15:
        return mutated_bytes(content, draw, others)
    return _as_json(changed_tree(tree, draw))[:MOST_BYTES]


def mutated_json_lines(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change the document on one line, or the lines."""
    if draw.random() < 0.3:
        return mutated_lines(content, draw, others)
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    lines[at] = mutated_json(lines[at], draw, others)
    return b"\n".join(lines)[:MOST_BYTES]


def changed_tree(tree: Any, draw: Random) -> Any:
    """A copy of a document with some values replaced, removed, renamed, doubled, swapped or nested."""
    tree = copy.deepcopy(tree)
    for _ in range(1 << draw.randrange(3)):
        holders = list(_holders(tree))
        if not holders:
            return draw.choice(_VALUES)
        holder = draw.choice(holders)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key, kind = draw.choice(keys), draw.randrange(8)
        if kind < 3:
            holder[key] = copy.deepcopy(draw.choice(_VALUES))
        elif kind == 3:
            del holder[key]
        elif kind == 4 and isinstance(holder, dict):
            holder[draw.choice(("", "a", key[:-1], f"{key}x", key.upper(), "../x", "/etc/hostname"))] = holder.pop(key)
        elif kind == 4:
            holder.insert(key, copy.deepcopy(holder[key]))
        elif kind == 5 and isinstance(holder[key], int | float):
            holder[key] = draw.choice(
                (-holder[key], holder[key] + 1, holder[key] * 1000, str(holder[key]), [holder[key]])
            )
        elif kind == 5 and isinstance(holder[key], str):
            text = holder[key].encode("utf-8", "surrogatepass")
            holder[key] = mutated_bytes(text, draw).decode("utf-8", "replace")
        elif kind == 6:
            other = draw.choice(keys)
            holder[key], holder[other] = holder[other], holder[key]
        else:
            for _ in range(draw.choice((1, 3, 70))):
                holder[key] = draw.choice(([holder[key]], {"a": holder[key]}))
    return tree


def _holders(tree: Any) -> Iterator[Any]:
    """The nonempty lists and mappings of a document."""
    waiting = [tree]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict | list) and inner:
            yield inner
            waiting += inner.values() if isinstance(inner, dict) else inner


def _document(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def signed_metadata(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a checkpoint's metadata, and update its SHA-256."""
    document = _document(content)
    if not isinstance(document, dict) or draw.random() < 0.2:
        return mutated_json(content, draw, others)
    inner = changed_tree(document.get("content"), draw)
    return _as_json({"content": inner, "sha256": _sha256(json.dumps(inner, sort_keys=True).encode())})[:MOST_BYTES]


def signed_manifest(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a token store's manifest, and update its fingerprint."""
    manifest = _document(content)
    if not isinstance(manifest, dict) or draw.random() < 0.2:
        return mutated_json(content, draw, others)
    manifest = changed_tree(manifest, draw)
    if isinstance(manifest, dict):
        manifest["fingerprint"] = content_fingerprint(manifest)
        manifest["provenance_sha256"] = json_sha256(manifest.get("provenance"))
    return _as_json(manifest)[:MOST_BYTES]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def safetensors(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change the header of a safetensors file, and update its length."""
    size = int.from_bytes(content[:8], "little")
    header = _document(content[8 : 8 + size]) if size <= len(content) else None
    if header is None or draw.random() < 0.25:
        return mutated_bytes(content, draw, others)
    changed = _as_json(changed_tree(header, draw))
    return (len(changed).to_bytes(8, "little") + changed + content[8 + size :])[:MOST_BYTES]


def zip_members(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a member of a zip archive or its name, with valid checksums."""
    if draw.random() < 0.3:
        return mutated_bytes(content, draw, others)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, struct.error):
        return mutated_bytes(content, draw, others)
    if not members:
        return content
    at = max(draw.randrange(len(members)), draw.choice((0, draw.randrange(len(members))))) if draw.random() < 0.4 else 0
    name, inner = members[at]
    kind = draw.randrange(8)
    if kind == 0:
        del members[at]
    elif kind == 1:
        members.append((draw.choice((name, "../x", "/x", f"{name}/", "")), inner))
    elif kind == 2:
        members[at] = (mutated_bytes(name.encode(), draw).decode("latin-1").replace("\0", "_"), inner)
    else:
        members[at] = (name, mutated_bytes(inner, draw, others))
    buffer = io.BytesIO()
    packed = zipfile.ZIP_DEFLATED if draw.random() < 0.05 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", packed) as archive:
        for name, inner in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), inner, packed)
    return buffer.getvalue()[:MOST_BYTES]


def tf_records(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change TFRecords or their number, with valid checksums."""
    if draw.random() < 0.3:
        return mutated_bytes(content, draw, others)
    records, at = [], 0
    while at + 12 < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        records.append(content[at + 12 : at + 12 + size])
        at += 16 + size
    records = records or [content]
    number = draw.randrange(len(records))
    if draw.random() < 0.1:
        records.insert(number, draw.choice(records))
    else:
        records[number] = protobuf(records[number], draw, others)
    return b"".join(_framed(record) for record in records if record)[:MOST_BYTES]


def _framed(record: bytes) -> bytes:
    length = len(record).to_bytes(8, "little")
    return length + _masked_crc32c(length) + record + _masked_crc32c(record)


def _masked_crc32c(content: bytes) -> bytes:
    """The checksum that TFRecord files use."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc = ~crc & 0xFFFFFFFF
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def protobuf(content: bytes, draw: Random, others: Sequence[bytes] = (), depth: int = 0) -> bytes:
    """Change the fields of a protocol buffer message, and update their lengths."""
    fields = _fields(content) if draw.random() < 0.8 else []
    if not fields:
        return mutated_bytes(content, draw, others)
    at, kind = draw.randrange(len(fields)), draw.randrange(8)
    head, value = fields[at]
    if kind == 0:
        del fields[at]
    elif kind == 1:
        fields.insert(at, draw.choice(fields))
    elif kind == 2:
        other = draw.randrange(len(fields))
        fields[at], fields[other] = fields[other], fields[at]
    elif head & 7 == 2:
        fields[at] = (head, protobuf(value, draw, others, depth + 1) if depth < 6 else mutated_bytes(value, draw))
    elif head & 7 == 0:
        fields[at] = (head, _varint(draw.choice(_SIZES)))
    else:
        fields[at] = (head, draw.randbytes(len(value)))
    return b"".join(_varint(head) + (_varint(len(value)) if head & 7 == 2 else b"") + value for head, value in fields)[
        :MOST_BYTES
    ]


def _fields(content: bytes) -> list[tuple[int, bytes]]:
    """Parse a message into (field number and wire type, value); [] if it is invalid."""
    fields, at = [], 0
    while at < len(content):
        head, at = _read_varint(content, at)
        start = at
        if head & 7 == 0:
            _, at = _read_varint(content, at)
        elif head & 7 == 2:
            size, start = _read_varint(content, at)
            at = start + size
        elif head & 7 in (1, 5):
            at += 8 if head & 7 == 1 else 4
        else:
            return []
        if head == 0 or at > len(content):
            return []
        fields.append((head, content[start:at]))
    return fields


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content) and shift < 64:
        byte = content[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def signed_archive(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
    """Change one file in a zip archive that stands for a folder; the reader recomputes the folder's checksums."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    at = draw.randrange(len(members))
    name, inner = members[at]
    members[at] = (name, _BY_SUFFIX.get(Path(name).suffix, mutated_bytes)(inner, draw, others))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, inner in members:
            archive.writestr(zipfile.ZipInfo(name), inner)
    return buffer.getvalue()


_BY_SUFFIX: dict[str, Mutation] = {".json": mutated_json, ".jsonl": mutated_json_lines}


def compressed(suffix: str, inner: Mutation) -> Mutation:
    """Make a mutation of the uncompressed content, the compressed bytes, or the number of frames."""
    pack, unpack = _CODECS[suffix]

    def mutation(content: bytes, draw: Random, others: Sequence[bytes] = ()) -> bytes:
        if draw.random() < 0.3:
            return mutated_bytes(content, draw, others)
        try:
            text = unpack(content, 4 * MOST_BYTES)
        except Exception:  # an earlier mutation has damaged the content
            return mutated_bytes(content, draw, others)
        kind = draw.random()
        if kind < 0.05:
            return pack(text) * 2 + draw.choice((b"", b"\0" * 4, b"\0" * 9, b"x"))
        if kind < 0.051:
            unit = draw.choice((b"\0", b"a ", b"a\n", b"\xff"))
            return pack(unit * ((draw.choice((1, 8, 64)) << 20) // len(unit)))
        return pack(inner(text, draw, others))[:MOST_BYTES]

    return mutation


def _unpack_zst(content: bytes, most: int) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(content)[:most]


def _pack_zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(content)


def pack(suffix: str, content: bytes) -> bytes:
    """Compress the content for a file with this suffix."""
    return _CODECS[suffix][0](content)


_CODECS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, int], bytes]]] = {
    ".gz": (lambda c: gzip.compress(c, 1, mtime=0), lambda c, most: gzip.GzipFile(fileobj=io.BytesIO(c)).read(most)),
    ".bz2": (lambda c: bz2.compress(c, 1), lambda c, most: bz2.BZ2Decompressor().decompress(c, most)),
    ".xz": (lambda c: lzma.compress(c, preset=0), lambda c, most: lzma.LZMADecompressor().decompress(c, most)),
    ".zst": (_pack_zst, _unpack_zst),
}
