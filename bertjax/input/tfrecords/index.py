"""Where each record of a file lies and whether it is held out: found once, kept below `data.root` by the file's digest.

A folder `records-<fingerprint>` holds `index.npz` and, of a compressed file, all of it unpacked, for a compressed file
cannot be read from the middle. It appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.tfrecords.files import scan
from bertjax.input.tfrecords.rows import RowShape
from bertjax.storage.atomic_directories import exclusive_lock, removed_on_error, require_inputs
from bertjax.storage.files import sync, write_durably
from bertjax.storage.lines import COMPRESSED, read_chunks
from bertjax.storage.progress import Progress
from bertjax.text.corpus import Corpus, Unit, fingerprint
from bertjax.text.pool import run_units
from bertjax.text.sources.source import SourceFile

INDEX_VERSION = 1  # of what an index holds and how records are drawn; a change makes other ones
_INDEX, _UNPACKED = "index.npz", "unpacked.tfrecord"
_PIECE = 1 << 17  # bytes; the checksums' tables and what is worked on fit in a core's cache
_UNPACKING = 10  # times a compressed file's bytes, about: rows are padded with zeros


@dataclass(frozen=True)
class RecordFile:
    """A file whose records can be read one by one."""

    name: str  # for messages
    path: str  # of a compressed file, its unpacked copy
    source: int  # index in data.sources
    shape: RowShape
    edges: np.ndarray  # int64 [records + 1]: the byte where each record begins, and where the last one ends
    draws: np.ndarray  # float64 [records], in [0, 1): below `data.held_out` the record is held out


def indexed(corpus: Corpus, shapes: Mapping[str, RowShape], data: DataConfig, progress: Progress) -> list[RecordFile]:
    """The files that have a shape, in order. Raises ValueError for a damaged record, OSError if the disk is full."""
    root = Path(data.root)
    digests = {
        file.path: digest
        for files, of_files in zip(corpus.files, corpus.digests, strict=True)
        for file, digest in zip(files, of_files, strict=True)
    }
    with exclusive_lock(root):
        _make_missing(corpus, digests, data, progress)
    return [
        _load(file, number, shape, digests[file.path], root)
        for number, files in enumerate(corpus.files)
        for file in files
        if (shape := shapes.get(file.path))
    ]


def _make_missing(corpus: Corpus, digests: Mapping[str, str], data: DataConfig, progress: Progress) -> None:
    """Index the files that have no index yet; of files with the same content, one."""
    root = Path(data.root)
    missing = {
        digests[file.path]: Unit(0, source, (file,), file.size)
        for source, files in enumerate(corpus.files)
        for file in files
        if not _folder(root, digests[file.path]).exists()
    }
    done, total = 0, sum(unit.size for unit in missing.values())
    make = partial(_index_unit, digests=digests, root=root)
    for unit, _ in run_units(make, list(missing.values()), "indexing records", workers=data.workers):
        done += unit.size
        progress("indexing records", done, total)
    corpus.require_unchanged()


def _index_unit(unit: Unit, digests: Mapping[str, str], root: Path) -> None:
    (file,) = unit.files
    folder = _folder(root, digests[file.path])
    unfinished = folder.with_name(f"{folder.name}.partial")
    with removed_on_error(unfinished, lambda: _bytes_needed(file)):
        unfinished.mkdir(exist_ok=True)
        if file.path.endswith(COMPRESSED):
            with open(unfinished / _UNPACKED, "wb") as copy:
                edges, draws = _index(_copied(read_chunks(file.path, file.path), copy), file.path)
            sync(unfinished / _UNPACKED)
        else:
            edges, draws = _index(read_chunks(file.path, file.path), file.path)
        content = io.BytesIO()
        np.savez(content, edges=edges, draws=draws, inputs=np.array(_inputs(digests[file.path])))
        write_durably(unfinished / _INDEX, content.getvalue())
        unfinished.rename(folder)
        sync(root)


def _index(chunks: Iterable[bytes], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the records of a file begin and the last one ends, and a number in [0, 1) by the content of each."""
    edges, draws = [np.zeros(1, np.int64)], [np.zeros(0)]
    pieces = (chunk[start : start + _PIECE] for chunk in chunks for start in range(0, len(chunk), _PIECE))
    for found, records in scan(pieces, name):
        edges.append(found[1:])
        hashed = b"".join(hashlib.blake2b(record, digest_size=8).digest() for record in records)
        draws.append(np.frombuffer(hashed, ">u8") / 2.0**64)
    return np.concatenate(edges), np.concatenate(draws)


def _copied(chunks: Iterable[bytes], copy: BinaryIO) -> Iterator[bytes]:
    for chunk in chunks:
        copy.write(chunk)
        yield chunk


def _load(file: SourceFile, source: int, shape: RowShape, digest: str, root: Path) -> RecordFile:
    folder = _folder(root, digest)
    try:
        with np.load(folder / _INDEX, allow_pickle=False) as kept:  # which checks the CRC-32 of each array
            edges, draws, inputs = kept["edges"], kept["draws"], str(kept["inputs"])
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{folder / _INDEX} is missing or damaged ({error}); delete the folder") from None
    require_inputs(inputs, _inputs(digest), folder)
    if not file.path.endswith(COMPRESSED):
        return RecordFile(file.path, file.path, source, shape, edges, draws)
    unpacked = str(folder / _UNPACKED)
    return RecordFile(f"{file.path} (as {unpacked})", unpacked, source, shape, edges, draws)


def _folder(root: Path, digest: str) -> Path:
    return root / f"records-{_inputs(digest)[:12]}"


def _inputs(digest: str) -> str:
    return fingerprint({"records": digest, "version": INDEX_VERSION})


def _bytes_needed(file: SourceFile) -> int:
    return file.size * _UNPACKING if file.path.endswith(COMPRESSED) else file.size // 16
