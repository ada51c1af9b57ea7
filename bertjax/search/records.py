"""Documents, queries and judgements read from files, and the stored documents of an index."""

from __future__ import annotations

import contextlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Ids
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from bertjax.embed.texts import STANDARD_INPUT, has_json, read_texts, source_of_texts
from bertjax.storage.json_documents import parse_json
from bertjax.storage.lines import COMPRESSED, read_lines
from bertjax.storage.remote import is_remote
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.jsonl import json_records, text_in
from bertjax.text.sources.source import DEFAULT_FIELD

Judgements = dict[str, dict[str, int]]  # grades by query and document; 0 or less: not relevant

_HEADING = ["query-id", "corpus-id", "score"]
_GRADE = re.compile(r" *-?\d{1,9} *")


class Record(NamedTuple):
    """A document or a query."""

    id: str
    text: str
    title: str = ""

    @property
    def whole(self) -> str:
        """Title and text, joined as BEIR does."""
        return f"{self.title} {self.text}".strip()

    def lines(self) -> tuple[str, str]:
        """Title and text for display, a line each; a title that the text repeats at its beginning is removed there."""
        title, text = " ".join(self.title.split()), " ".join(self.text.split())
        repeated = re.match(rf"{re.escape(title)}(?!\w)[ .:]*", text, re.IGNORECASE) if title else None
        return title, text[repeated.end() :] if repeated else text


def read_records(paths: Sequence[str], field: str | None, counts: ReadCounts) -> Iterator[Record]:
    """Read the documents or queries of files, in order.

    Lines of a .jsonl are objects with `_id` (or `id`), `field` (text) and optionally `title`, as in BEIR; other files
    have only texts, see `bertjax.embed.texts.read_texts`. A record without id gets its number, from 1 over all files.
    Raises ValueError naming file and line of unreadable content.
    """
    return (record for _, record in _read_located(paths, field, counts))


def _read_located(paths: Sequence[str], field: str | None, counts: ReadCounts) -> Iterator[tuple[str, Record]]:
    """Yield (file and line, record) for each record."""
    number = 0
    for path in paths:
        source = source_of_texts(path)
        if has_json(path, field):
            records = (
                (location, _record(location, row, field, counts)) for location, row in json_records(source, counts)
            )
        else:
            records = ((path, Record("", text)) for text in read_texts([path], field, counts))
        for location, record in records:
            number += 1
            yield location, record if record.id else record._replace(id=str(number))


def _record(location: str, row: Mapping[str, Any], field: str | None, counts: ReadCounts) -> Record:
    field = field or DEFAULT_FIELD
    key = "_id" if "_id" in row else "id"
    id = row.get(key, "")
    if not isinstance(id, str | int) or isinstance(id, bool):
        raise ValueError(f"{location}: `{key}` is {type(id).__name__}; an id is a string or a number")
    has_title = field != "title" and row.get("title") is not None
    title = text_in(row, "title", location, counts) if has_title else ""
    return Record(str(id), text_in(row, field, location, counts), title)


def count_records(paths: Sequence[str], field: str | None) -> int:
    """Count documents by reading the files once, so that bad input is refused before the work begins.

    Raises ValueError as `read_records` does, and also if there is no document or two share an id.
    """
    for path in paths:
        if not is_remote(path) and not Path(path).is_file():
            if path == STANDARD_INPUT or Path(path).exists():
                raise ValueError(f"{path}: documents are read twice, which a pipe does not allow; write them to a file")
            raise ValueError(f"--documents {path}: no such file; a query must come before --documents")
    seen = array("q", (hash(record.id) for record in read_records(paths, field, ReadCounts())))
    if not seen:
        raise ValueError(f"{', '.join(paths)}: no documents; name other files")
    hashes = np.sort(np.frombuffer(seen, np.int64))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if repeated:
        # Read a second time to distinguish equal ids from colliding hashes.
        first_seen: dict[str, str] = {}
        for location, record in _read_located(paths, field, ReadCounts()):
            if hash(record.id) not in repeated:
                continue
            if record.id in first_seen:
                raise ValueError(
                    f"{location}: id {record.id!r} is already used at {first_seen[record.id]}; ids must be unique"
                )
            first_seen[record.id] = location
    return len(seen)


def read_judgements(path: str) -> Judgements:
    """Read relevance judgements: BEIR's TSV (query, document, grade) or TREC's qrels (a 0 after the query).

    Raises ValueError naming file and line of anything else, for two grades of one pair, and without judgements.
    """
    judgements: Judgements = {}
    for number, line in enumerate(read_lines(source_of_texts(path), lambda number: None), 1):
        parts = line.split("\t") if "\t" in line else line.split()
        if not parts or (number == 1 and parts == _HEADING):
            continue
        if len(parts) == 4:
            del parts[1]
        location = f"{path}, line {number}"
        if len(parts) != 3 or not _GRADE.fullmatch(parts[2]):
            raise ValueError(
                f"{location}: {line[:80]!r} is not a judgement; write query, document and grade, separated by tabs"
            )
        query, document, grade = parts[0], parts[1], int(parts[2])
        if judgements.setdefault(query, {}).setdefault(document, grade) != grade:
            raise ValueError(
                f"{location}: document {document!r} has another grade for query {query!r} in an earlier line"
            )
    if not judgements:
        raise ValueError(f"{path}: no judgements; is it the right file?")
    return judgements


class Collection(NamedTuple):
    """The files of a folder in BEIR's layout."""

    documents: str
    queries: str
    judgements: str


def find_collection(folder: Path, judgements: str | None = None, *, train: bool = False) -> Collection:
    """Find corpus.jsonl, queries.jsonl and qrels/test.tsv, or the only file in qrels/; compressed or not.

    With `train`, the judgements are qrels/train.tsv. `judgements` replace the folder's own. Raises ValueError naming a
    missing file, or the judgements to choose from.
    """
    files = [_find_file(folder, f"{name}.jsonl") for name in ("corpus", "queries")]
    if judgements:
        return Collection(str(files[0]), str(files[1]), judgements)
    qrels = sorted(folder.glob("qrels/*.tsv*"))
    if not qrels:
        raise ValueError(f"{folder}: no qrels/*.tsv; is it a folder in BEIR's layout?")
    chosen = [path for path in qrels if path.name.startswith("train.tsv" if train else "test.tsv")]
    if train and not chosen:
        names = ", ".join(path.name for path in qrels)
        raise ValueError(
            f"{folder}: no qrels/train.tsv to make training data from; {names} may be for evaluation; name the "
            "judgements to train on as --qrels FILE"
        )
    if len(chosen := chosen or qrels) != 1:
        names = ", ".join(path.name for path in chosen)
        raise ValueError(f"{folder}: qrels/ has {names}; name one of them as --qrels FILE")
    return Collection(str(files[0]), str(files[1]), str(chosen[0]))


def _find_file(folder: Path, name: str) -> Path:
    path = next((path for end in ("", *COMPRESSED) if (path := folder / f"{name}{end}").is_file()), None)
    if path is None:
        raise ValueError(f"{folder}: no {name}; is it a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/)?")
    return path


RECORDS, OFFSETS = "documents.jsonl", "documents.offsets.npy"


@contextlib.contextmanager
def store_documents(folder: Path) -> Iterator[Callable[[Record], None]]:
    """Yield a function that writes the next document into a folder; the files are complete on exit.

    Memory grows by 8 bytes per document.
    """
    offsets = array("q", [0])
    with (folder / RECORDS).open("wb") as file:

        def add(record: Record) -> None:
            row = {"_id": record.id, "title": record.title, "text": record.text}
            written = file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            offsets.append(offsets[-1] + written)

        yield add
    np.save(folder / OFFSETS, np.frombuffer(offsets, np.int64))


class _Stored(TypedDict):
    _id: str
    text: str
    title: str


class StoredDocuments:
    """Random access to documents by number, from 0."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._offsets = np.load(folder / OFFSETS)
        self._bytes = np.memmap(self._path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, number: int) -> Record:
        row = self._bytes[slice(*self._offsets[number : number + 2])].tobytes()
        stored: _Stored = parse_json(row, f"{self._path}, document {number}", _Stored)
        return Record(stored["_id"], stored["text"], stored["title"])

    def numbers(self, ids: Ids[str]) -> dict[str, int]:
        """Map ids to document numbers by scanning all documents; unknown ids are left out."""
        return {id: number for number in range(len(self)) if (id := self[number].id) in ids}


def own_documents(queries: Sequence[Record], documents: StoredDocuments) -> np.ndarray:
    """Find queries that are documents themselves: int64 [queries], the document's number or -1.

    Such a document has the query's id and text, with or without the title, ignoring white space. BEIR's evaluator
    (`ignore_identical_ids`) compares only ids, which in many collections coincide by chance.
    """
    numbers = documents.numbers({query.id for query in queries})
    own = np.full(len(queries), -1)
    for position, query in enumerate(queries):
        if query.id in numbers:
            document = documents[numbers[query.id]]
            if query.whole.split() in (document.text.split(), document.whole.split()):
                own[position] = numbers[query.id]
    return own
