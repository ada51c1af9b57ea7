"""Documents, queries and judgements from files, and the documents of an index as they are stored."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

import numpy as np

from bertjax.embed.texts import STANDARD_INPUT, has_json, read_texts, source_of_texts
from bertjax.storage.json_documents import parse_json
from bertjax.storage.lines import CHUNK, read_lines
from bertjax.storage.remote import is_remote, open_bytes
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.jsonl import json_records, text_in
from bertjax.text.sources.source import DEFAULT_FIELD

Judgements = dict[str, dict[str, int]]  # grades by query and document; 0 and less: not relevant

_HEADING = ["query-id", "corpus-id", "score"]
_GRADE = re.compile(r" *-?\d{1,9} *")


class Record(NamedTuple):
    """A document or a query."""

    id: str
    text: str
    title: str = ""

    @property
    def whole(self) -> str:
        """Title and text in one, as BEIR joins them."""
        return f"{self.title} {self.text}".strip()


def read_records(paths: Sequence[str], field: str | None, counts: ReadCounts) -> Iterator[Record]:
    """The documents or queries of files, in order.

    A .jsonl's lines are objects with `_id` (or `id`), `field` (text) and maybe `title`, as in BEIR; other files have
    texts alone, as `bertjax.embed.texts.read_texts` reads them. A record without id gets its number, from 1 over all
    files. Raises ValueError naming file and line for what cannot be read.
    """
    return (record for _, record in _located(paths, field, counts))


def _located(paths: Sequence[str], field: str | None, counts: ReadCounts) -> Iterator[tuple[str, Record]]:
    """(file and line, record) of each record."""
    number = 0
    for path in paths:
        source = source_of_texts(path)
        if has_json(path, field):
            found = ((where, _record(where, row, field, counts)) for where, row in json_records(source, counts))
        else:
            found = ((path, Record("", text)) for text in read_texts([path], field, counts))
        for where, record in found:
            number += 1
            yield where, record if record.id else record._replace(id=str(number))


def _record(where: str, row: Mapping[str, Any], field: str | None, counts: ReadCounts) -> Record:
    field = field or DEFAULT_FIELD
    name = next((name for name in ("_id", "id") if name in row), None)
    known = row[name] if name else ""
    if not isinstance(known, str | int) or isinstance(known, bool):
        raise ValueError(f"{where}: `{name}` is {type(known).__name__}; an id is a string or a number")
    titled = field != "title" and row.get("title") is not None
    title = text_in(row, "title", where, counts) if titled else ""
    return Record(str(known), text_in(row, field, where, counts), title)


def count_records(paths: Sequence[str], field: str | None) -> int:
    """The number of documents, by reading the files once, so that bad input is refused before the work begins.

    Raises ValueError as `read_records` does, if there is no document, and if two have one id.
    """
    for path in paths:
        if not is_remote(path) and not Path(path).is_file():
            if path == STANDARD_INPUT or Path(path).exists():
                raise ValueError(f"{path}: documents are read twice, and this is not a file; write them to a file")
            raise ValueError(f"--documents {path}: no such file; a query must come before --documents")
    seen = array("q", (hash(record.id) for record in read_records(paths, field, ReadCounts())))
    if not seen:
        raise ValueError(f"{', '.join(paths)}: not one document there; name files that have some")
    hashes = np.sort(np.frombuffer(seen, np.int64))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if repeated:
        _require_own_ids(paths, field, repeated)
    return len(seen)


def _require_own_ids(paths: Sequence[str], field: str | None, suspects: set[int]) -> None:
    """Raise ValueError for the first id that an earlier document has too, among ids whose hashes collide."""
    first_seen: dict[str, str] = {}
    for where, record in _located(paths, field, ReadCounts()):
        if hash(record.id) not in suspects:
            continue
        if record.id in first_seen:
            raise ValueError(f"{where}: the id {record.id!r} is that of {first_seen[record.id]} too; give each its own")
        first_seen[record.id] = where


def sha256_of(path: str) -> str:
    """SHA-256 (hex) of a file's bytes."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def read_judgements(path: str) -> Judgements:
    """Which documents answer which queries: BEIR's TSV (query, document, grade) or TREC's qrels (a 0 after query).

    Raises ValueError naming file and line for anything else, for two grades of one pair, and if there is none.
    """
    judgements: Judgements = {}
    for number, line in enumerate(read_lines(source_of_texts(path), lambda number: None), 1):
        parts = line.split("\t") if "\t" in line else line.split()
        if not parts or (number == 1 and parts == _HEADING):
            continue
        if len(parts) == 4:
            del parts[1]
        where = f"{path}, line {number}"
        if len(parts) != 3 or not _GRADE.fullmatch(parts[2]):
            raise ValueError(f"{where}: {line[:80]!r} is no judgement; write query, document, grade with tabs between")
        query, document, grade = parts[0], parts[1], int(parts[2])
        if judgements.setdefault(query, {}).setdefault(document, grade) != grade:
            raise ValueError(f"{where}: document {document!r} has another grade for query {query!r} further up")
    if not judgements:
        raise ValueError(f"{path}: not one judgement there; is it the right file?")
    return judgements


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


class _Stored(TypedDict):
    """A line of the file of documents."""

    _id: str
    text: str
    title: str


def ascend_from_0(offsets: np.ndarray) -> bool:
    """Whether an array is offsets: int64 [n + 1], ascending from 0, equal ones included."""
    is_one = offsets.dtype == np.int64 and offsets.ndim == 1 and len(offsets) > 0
    return is_one and offsets[0] == 0 and bool((offsets[1:] >= offsets[:-1]).all())


class StoredDocuments:
    """The documents by number, from 0."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._offsets = np.load(folder / OFFSETS)
        self._bytes = np.memmap(self._path, np.uint8, "r")

    @property
    def are_sound(self) -> bool:
        """Whether the offsets are within the file, in order."""
        offsets = self._offsets
        return ascend_from_0(offsets) and offsets[-1] == len(self._bytes)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Record:
        row = self._bytes[slice(*self._offsets[number : number + 2])].tobytes()
        found: _Stored = parse_json(row, f"{self._path}, document {number}", _Stored)
        return Record(found["_id"], found["text"], found["title"])

    def numbers(self, ids: Collection[str]) -> dict[str, int]:
        """Id -> number of the documents with these ids, by a scan of all; an unknown id is left out."""
        found = ((self[number].id, number) for number in range(len(self)))
        return {name: number for name, number in found if name in ids}


def own_documents(queries: Sequence[Record], documents: StoredDocuments) -> np.ndarray:
    """The number of the document that each query is itself, int64 [queries]; -1 for a query that is none.

    It has the query's id and its text, with the title or without, whatever the white space. BEIR's evaluator
    (`ignore_identical_ids`) goes by the id alone, which many collections give to a query and a document by chance.
    """
    numbers = documents.numbers({query.id for query in queries})
    own = [numbers.get(query.id, -1) for query in queries]
    same = [number >= 0 and _same_text(query, documents[number]) for query, number in zip(queries, own, strict=True)]
    return np.where(same, np.array(own, np.int64), -1)


def _same_text(query: Record, document: Record) -> bool:
    return query.whole.split() in (document.text.split(), document.whole.split())
