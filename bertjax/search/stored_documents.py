"""The documents of an index: a file of records in the layout of BEIR, and a file of their offsets."""

from __future__ import annotations

import contextlib
import json
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bertjax.search.records import Record

RECORDS, OFFSETS = "documents.jsonl", "documents.offsets.npy"


class DocumentWriter:
    """Writes a stream of documents; memory grows by 8 bytes per document."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._offsets = array("q", [0])

    @classmethod
    @contextlib.contextmanager
    def at(cls, folder: Path) -> Iterator[DocumentWriter]:
        """A writer into a folder, whose files are complete on exit."""
        with (folder / RECORDS).open("wb") as file:
            writer = cls(file)
            yield writer
        np.save(folder / OFFSETS, np.frombuffer(writer._offsets, np.int64))

    def add(self, record: Record) -> None:
        """Write the next document."""
        row = {"_id": record.id, "title": record.title, "text": record.text}
        written = self._file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self._offsets.append(self._offsets[-1] + written)


class StoredDocuments:
    """The documents by number, from 0."""

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / OFFSETS)
        self._bytes = np.memmap(folder / RECORDS, np.uint8, "r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Record:
        row = json.loads(self._bytes[slice(*self._offsets[number : number + 2])].tobytes())
        return Record(row["_id"], row["text"], row["title"])

    def numbers(self, ids: Collection[str]) -> dict[str, int]:
        """Id -> number of the documents with these ids, by a scan of all; an unknown id is left out."""
        found = ((self[number].id, number) for number in range(len(self)))
        return {name: number for name, number in found if name in ids}
