"""Files of search results: TREC runs, or JSON Lines with the texts that were found."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bertjax.embed.outputs import output_path
from bertjax.search.rankings import Hits
from bertjax.search.records import Record, StoredDocuments
from bertjax.storage.files import replacing

_RUN_NAME = "bertjax"  # the last column of a TREC run


def require_output(name: str) -> Path:
    """The path to write results to. Raises ValueError early if that is impossible."""
    return output_path(name, _LINES, "results")


def write_results(path: Path, queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments) -> None:
    """Write the results of each query, best first, atomically.

    .jsonl: a line per query, `{"query": its id, "text": ..., "results": [{"id", "score", "title", "text"}, ...]}`.
    .trec: lines `query Q0 document rank score bertjax`. Raises ValueError for an id that such a line cannot hold.
    """
    lines = _LINES[path.suffix]
    with replacing(path) as file:
        for query, hits in zip(queries, found, strict=True):
            file.writelines(f"{line}\n".encode() for line in lines(query, hits, documents))


def _json_lines(query: Record, hits: Hits, documents: StoredDocuments) -> Iterator[str]:
    results = []
    for number, score in zip(*hits, strict=True):
        record = documents[number]
        results.append({"id": record.id, "score": float(score), "title": record.title, "text": record.text})
    yield json.dumps({"query": query.id, "text": query.whole, "results": results}, ensure_ascii=False)


def _trec_lines(query: Record, hits: Hits, documents: StoredDocuments) -> Iterator[str]:
    for rank, (number, score) in enumerate(zip(*hits, strict=True), 1):
        words = [query.id, "Q0", documents[number].id, str(rank), f"{score:.9g}", _RUN_NAME]
        for kind, word in (("query", words[0]), ("document", words[2])):
            if len(word.split()) != 1:
                raise ValueError(f"{kind} id {word!r}: a line of a .trec file has spaces between; write .jsonl instead")
        yield " ".join(words)


_LINES: dict[str, Callable[[Record, Hits, StoredDocuments], Iterator[str]]] = {
    ".jsonl": _json_lines,
    ".trec": _trec_lines,
}
