"""Write a token store: first its shards as streams, then its manifest."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bertjax.storage.files import naming, sync, write_durably
from bertjax.storage.remote import AnyPath
from bertjax.text.store.manifest import (
    ARRAYS_VERSION,
    BLOCK_BYTES,
    FORMAT_VERSIONS,
    GROUP_DTYPE,
    GROUPS,
    MANIFEST_FILE,
    OFFSET_DTYPE,
    PARTS,
    PLANES,
    SPLITS,
    DigestsRecord,
    content_fingerprint,
    json_sha256,
    shard_files,
    token_dtype,
)
from bertjax.tokenization.tokenizer import Tokenizer

MOST_IN_MANIFEST = 16  # digests of a file; a larger file's are in a separate file


class ShardWriter:
    """Appends documents to the files of one shard, in bounded memory."""

    def __init__(
        self, folder: Path, name: str, vocab_size: int, planes: Sequence[str] = (), *, has_groups: bool = False
    ) -> None:
        self._dtype = token_dtype(vocab_size)
        self._planes = planes
        self._files = {
            part: _HashedFile(folder / f"{name}.{part}") for part in (*PARTS, *planes, *[GROUPS] * has_groups)
        }
        self._group = np.zeros(1, GROUP_DTYPE)  # of the last document
        self._name = name
        self._documents = self._sentences = self._tokens = 0
        self._counts = np.zeros(vocab_size, np.int64)  # of each id
        self._unended = 0  # sentences of the last document, whose end is written once the next one begins
        self._divided = False  # whether documents are pieces of works
        self._work, self._works = 0, Counter[int]()  # the last document's work, and the finished documents of each
        for part in ("sentences", "documents"):
            self._files[part].write(np.zeros(1, OFFSET_DTYPE))

    def add(
        self,
        ids: np.ndarray,
        sentence_lengths: np.ndarray,
        part_lengths: np.ndarray,
        is_continuation: np.ndarray,
        is_of_same_work: np.ndarray | None = None,
        groups: np.ndarray | None = None,
        **planes: np.ndarray,
    ) -> None:
        """Append documents, whole or in parts.

        Args:
            ids: [tokens], any integer dtype.
            sentence_lengths: [sentences] in tokens, none 0.
            part_lengths: [parts] in sentences; documents without sentences are left out.
            is_continuation: bool [parts], whether a part continues the document of the part before it, which may be
                from an earlier call.
            is_of_same_work: bool [parts], whether a part's document belongs to the same work as the document before
                it; None if documents are whole works.
            groups: uint64 [parts], the group of each part's document; None for a shard without groups.
            planes: Name -> [tokens].
        """
        assert sentence_lengths.sum() == len(ids) and part_lengths.sum() == len(sentence_lengths)
        assert (sentence_lengths > 0).all() and len(is_continuation) == len(part_lengths)
        assert planes.keys() == set(self._planes) and all(len(plane) == len(ids) for plane in planes.values())
        for name, plane in planes.items():
            self._files[name].write(plane.astype(PLANES[name]))
        self._files["tokens"].write(ids.astype(self._dtype))
        self._counts += np.bincount(ids, minlength=len(self._counts))
        self._files["sentences"].write((self._tokens + np.cumsum(sentence_lengths)).astype(OFFSET_DTYPE))
        self._add_documents(part_lengths, is_continuation, is_of_same_work, groups)
        self._sentences += len(sentence_lengths)
        self._tokens += len(ids)

    def finish(self) -> dict[str, Any]:
        """Sync the files to disk and return the shard's record for `finish_store`."""
        self._add_documents(np.zeros(1, np.int64), np.zeros(1, bool))
        return {
            "name": self._name,
            "documents": self._documents,
            "sentences": self._sentences,
            "tokens": self._tokens,
            **({"works": [self._works[work] for work in sorted(self._works)]} if self._divided else {}),
            "counts": base64.b64encode(zlib.compress(self._counts.astype(OFFSET_DTYPE).tobytes(), 1)).decode(),
            "files": {part: file.finish() for part, file in self._files.items()},
        }

    def _add_documents(
        self,
        part_lengths: np.ndarray,
        is_continuation: np.ndarray,
        is_of_same_work: np.ndarray | None = None,
        groups: np.ndarray | None = None,
    ) -> None:
        """Write the ends of all documents except the last, which may continue."""
        part_documents = np.cumsum(~is_continuation)  # 0 is the last document of the previous call
        lengths = np.bincount(part_documents, weights=part_lengths, minlength=1).astype(np.int64)
        lengths[0] += self._unended
        ends = self._sentences - self._unended + np.cumsum(lengths)
        document_ends = ends[:-1][lengths[:-1] > 0]
        self._files["documents"].write(document_ends.astype(OFFSET_DTYPE))
        self._documents += len(document_ends)
        if GROUPS in self._files:
            new = np.zeros(1, GROUP_DTYPE) if groups is None else groups[~is_continuation]  # None: called by finish
            document_groups = np.concatenate([self._group, new.astype(GROUP_DTYPE)])
            self._files[GROUPS].write(document_groups[: len(lengths) - 1][lengths[:-1] > 0])
            self._group = document_groups[-1:]
        if is_of_same_work is not None:
            self._divided = True
            new_work = np.cumsum(~is_of_same_work & ~is_continuation)[~is_continuation]
            works = self._work + np.concatenate([[0], new_work])
            self._works.update(works[:-1][lengths[:-1] > 0].tolist())
            self._work = int(works[-1])
        elif self._divided and len(document_ends):
            self._works[self._work] += len(document_ends)  # the last document of a shard
        self._unended = int(lengths[-1])

    def discard(self) -> None:
        """Remove the files."""
        for file in self._files.values():
            file.discard()


class _HashedFile:
    """A file that is written front to back and hashed on the way, as a whole and by block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: BinaryIO = open(path, "wb")  # noqa: SIM115 (closed by finish or discard)
        self._whole = hashlib.sha256()
        self._blocks: list[bytes] = []
        self._block = bytearray()
        self._bytes = 0

    def write(self, array: np.ndarray) -> None:
        data = array.tobytes()
        with naming(self._path):
            self._stream.write(data)
        self._bytes += len(data)
        self._block += data
        while len(self._block) >= BLOCK_BYTES:
            self._end_block()

    def finish(self) -> dict[str, Any]:
        if self._block:
            self._end_block()
        with naming(self._path):
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
        record = {"name": self._path.name, "bytes": self._bytes, "sha256": self._whole.hexdigest()}
        if len(self._blocks) <= MOST_IN_MANIFEST:
            return record | {"blocks": [block.hex() for block in self._blocks]}
        digests = _write_whole(self._path.parent, f"{self._path.name}.blocks", b"".join(self._blocks))
        return record | {"digests": digests}

    def discard(self) -> None:
        # Closing flushes, which fails again if the disk is full.
        with contextlib.suppress(OSError):
            self._stream.close()
        self._path.unlink(missing_ok=True)

    def _end_block(self) -> None:
        block = bytes(self._block[:BLOCK_BYTES])
        self._whole.update(block)
        self._blocks.append(hashlib.sha256(block).digest())
        del self._block[:BLOCK_BYTES]


def finish_store(
    folder: AnyPath,
    shards: Mapping[str, Sequence[Mapping[str, Any]]],
    tokenizer: Tokenizer,
    provenance: Mapping[str, Any],
    planes: Sequence[str] = (),
) -> None:
    """Turn a folder of finished shards into a store by adding the other files, the manifest last.

    `shards` has the records of each split's shards in order, with these `planes`; `provenance` describes where the text
    came from.
    """
    splits, count_files = {}, {}
    for split in SPLITS:
        records = shards.get(split, [])
        sums = {key: sum(record[key] for record in records) for key in ("documents", "sentences", "tokens")}
        listed = [{key: record[key] for key in record if key != "counts"} for record in records]
        splits[split] = {**sums, "shards": listed}
        if records:
            packed = (zlib.decompress(base64.b64decode(record["counts"])) for record in records)
            counts = sum((np.frombuffer(one, OFFSET_DTYPE) for one in packed), np.int64(0))
            count_files[split] = _write_whole(folder, f"{split}.counts", counts.astype(OFFSET_DTYPE).tobytes())
    manifest: dict[str, Any] = {
        "format_version": ARRAYS_VERSION,
        "tokenizer": {
            "fingerprint": tokenizer.fingerprint,
            "vocab_size": tokenizer.vocab_size,
            "special": tokenizer.special,
            **tokenizer.rules.described(),
        },
        "token_dtype": token_dtype(tokenizer.vocab_size),
        "block_bytes": BLOCK_BYTES,
        "splits": splits,
        "planes": {name: PLANES[name] for name in planes},
        "provenance": {**provenance, **({"token_counts": count_files} if count_files else {})},
    }
    if any("digests" in file for records in shards.values() for shard in records for file in shard_files(shard)):
        manifest["format_version"] = FORMAT_VERSIONS[-1]
    manifest["provenance_sha256"] = json_sha256(manifest["provenance"])
    manifest["fingerprint"] = content_fingerprint(manifest)
    for name, content in tokenizer.files.items():
        write_durably(folder / name, content)
    write_durably(folder / MANIFEST_FILE, json.dumps(manifest, indent=1, sort_keys=True).encode())
    if isinstance(folder, Path):
        sync(folder)


def publish_store(folder: AnyPath, target: AnyPath) -> None:
    """Rename a finished store to `target`, which must not exist; a remote folder is the target itself."""
    if isinstance(folder, Path):
        sync(folder)
        folder.rename(str(target))
        sync(folder.parent)


def _write_whole(folder: AnyPath, name: str, content: bytes) -> DigestsRecord:
    write_durably(folder / name, content)
    blocks = [content[start : start + BLOCK_BYTES] for start in range(0, len(content), BLOCK_BYTES)]
    digests = [hashlib.sha256(block).hexdigest() for block in blocks]
    return {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "blocks": digests}
