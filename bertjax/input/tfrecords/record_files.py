"""TFRecord files with random access, by an index of their records below `data.root`.

TensorFlow reads each file once from its beginning and verifies all checksums. The index stores the first byte of each
record and a digest of its content, so that a batch reads only its own records. A folder `records-<fingerprint>`, where
the fingerprint depends on the file's digest, holds `index.npz` and, for a compressed file, a decompressed copy. It is
created atomically.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import DataConfig
from bertjax.storage.atomic_directories import exclusive_lock, removed_on_error, require_inputs
from bertjax.storage.files import sync, write_durably
from bertjax.storage.lean_import import import_tensorflow
from bertjax.storage.lines import COMPRESSED, read_chunks
from bertjax.storage.progress import Progress
from bertjax.text.corpus import Corpus, Unit
from bertjax.text.pool import run_units
from bertjax.text.store.manifest import json_sha256

INDEX_VERSION = 2  # version of the index's content and of the held-out draw; a change rebuilds all indexes
_INDEX, _DECOMPRESSED = "index.npz", "decompressed.tfrecord"
_HEAD, _TAIL = 12, 4  # bytes around a record: its length (uint64) with a CRC-32C, and the CRC-32C of its content
_RECORDS_AT_A_TIME = 1 << 10
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class RecordFile:
    """A file whose records can be read one by one."""

    name: str  # in messages
    path: str  # for a compressed file, its decompressed copy
    source: int  # index in data.sources
    edges: np.ndarray  # int64 [records + 1]: first byte of each record, and the end of the last one
    digests: np.ndarray  # uint64 [records]

    def __len__(self) -> int:
        return len(self.digests)

    def is_held_out(self, share: float) -> np.ndarray:
        """Whether each record is held out, bool [records]. Depends only on its content; a larger share adds records."""
        return self.digests / 2.0**64 < share

    def read(self, records: np.ndarray) -> list[bytes]:
        """Read records by number, int64 [n]. Raises ValueError for one that differs from the indexed content."""
        begins = self.edges[records] + _HEAD
        sizes = self.edges[records + 1] - _TAIL - begins
        file = os.open(self.path, os.O_RDONLY)
        try:
            contents = [
                os.pread(file, size, begin) for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True)
            ]
        finally:
            os.close(file)
        for record in records[_digests(contents) != self.digests[records]].tolist():
            raise ValueError(
                f"{self.name}, record {record}: damaged, or changed since it was indexed; get the file again"
            )
        return contents


def open_record_files(corpus: Corpus, data: DataConfig, progress: Progress) -> list[RecordFile]:
    """Open the corpus's files, in order, without empty ones; indexes new files first.

    Raises ValueError with the file, the record and its first byte for damage, OSError if the disk is full.
    """
    root = Path(data.root)
    hashed = [(source, file, digest) for source, group in enumerate(corpus.hashed) for file, digest, _ in group]
    digests = {file.path: digest for _, file, digest in hashed}
    with exclusive_lock(root):
        missing = {  # one entry for files with the same content
            digest: Unit(0, source, (file,), file.size)
            for source, file, digest in hashed
            if not _folder(root, digest).exists()
        }
        done, total = 0, sum(unit.size for unit in missing.values())
        index = partial(_index_unit, digests=digests, root=root)
        for unit, _ in run_units(index, list(missing.values()), "indexing records", workers=data.workers):
            done += unit.size
            progress("indexing records", done, total)
        corpus.require_unchanged()
    files = [_load(file.path, source, digest, root) for source, file, digest in hashed]
    return [file for file in files if len(file)]


def read_record_batches(path: str, name: str) -> Iterator[list[bytes]]:
    """Iterate over the records of a decompressed file, in batches.

    Raises ValueError with the record and its first byte if it is damaged or cut off.
    """
    tf = tensorflow()
    records = tf.data.TFRecordDataset(path)
    try:
        for batch in records.batch(_RECORDS_AT_A_TIME).as_numpy_iterator():
            yield batch.tolist()
    except tf.errors.DataLossError:
        number = begin = 0
        try:
            for record in records.as_numpy_iterator():
                number, begin = number + 1, begin + _HEAD + len(record) + _TAIL
        except tf.errors.DataLossError as error:
            with open(path, "rb") as file:
                is_compressed = file.read(len(_GZIP)) == _GZIP
            if is_compressed:
                reason = "the file is compressed; give it a name that ends in .gz"
            elif "truncated" in error.message:
                reason = "the file ends inside it; get the file again"
            else:
                reason = "damaged (CRC-32C), or not in a TFRecord file; get the file again"
            raise ValueError(f"{name}, record {number} at byte {begin}: {reason}") from None
        raise


def tensorflow() -> Any:
    """Import TensorFlow, whose parsers and file readers these sources need. Raises ModuleNotFoundError without it."""
    try:
        return import_tensorflow(required=True)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "tfrecord sources require TensorFlow, which is not installed; install it, or pretrain from text"
        ) from None


def _index_unit(unit: Unit, digests: Mapping[str, str], root: Path) -> None:
    """Write the index of a file, and its decompressed copy if it needs one."""
    (file,) = unit.files
    digest, compressed = digests[file.path], file.path.endswith(COMPRESSED)
    folder = _folder(root, digest)
    unfinished = folder.with_name(f"{folder.name}.partial")
    # Rows are padded with zeros, so they compress to about a tenth.
    with removed_on_error(unfinished, lambda: file.size * 10 if compressed else file.size // 16):
        unfinished.mkdir(exist_ok=True)
        path = file.path
        if compressed:
            path = str(unfinished / _DECOMPRESSED)
            with open(path, "wb") as copy:
                copy.writelines(read_chunks(file.path, file.path))
            sync(unfinished / _DECOMPRESSED)
        edges, digest_parts = [np.zeros(1, np.int64)], [np.zeros(0, np.uint64)]
        for records in read_record_batches(path, file.path):
            edges.append(edges[-1][-1] + np.cumsum([_HEAD + len(record) + _TAIL for record in records]))
            digest_parts.append(_digests(records))
        content = io.BytesIO()
        np.savez(
            content, edges=np.concatenate(edges), digests=np.concatenate(digest_parts), inputs=np.array(_inputs(digest))
        )
        write_durably(unfinished / _INDEX, content.getvalue())
        unfinished.rename(folder)
        sync(root)


def _digests(contents: list[bytes]) -> np.ndarray:
    """A 64-bit digest of each content, uint64 [n]."""
    hashed = b"".join(hashlib.blake2b(content, digest_size=8).digest() for content in contents)
    return np.frombuffer(hashed, ">u8").astype(np.uint64)


def _load(path: str, source: int, digest: str, root: Path) -> RecordFile:
    folder = _folder(root, digest)
    try:
        with np.load(folder / _INDEX, allow_pickle=False) as index:  # verifies the CRC-32 of each array
            edges, digests, inputs = index["edges"], index["digests"], str(index["inputs"])
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder / _INDEX} is missing or damaged ({error}); delete the folder") from None
    require_inputs(inputs, _inputs(digest), folder)
    if not path.endswith(COMPRESSED):
        return RecordFile(path, path, source, edges, digests)
    copy = str(folder / _DECOMPRESSED)
    return RecordFile(f"{path} (as {copy})", copy, source, edges, digests)


def _folder(root: Path, digest: str) -> Path:
    return root / f"records-{_inputs(digest)[:12]}"


def _inputs(digest: str) -> str:
    return json_sha256({"records": digest, "version": INDEX_VERSION})
