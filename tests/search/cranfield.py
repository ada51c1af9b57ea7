"""The Cranfield collection as a folder in BEIR's layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

# Grades by code: in the collection's readme 1 is the best and 4 the least. The readme does not explain -1, which one
# document of every query has. These documents are easier to find than those with code 1, by words and by vectors alike,
# so that they count as the best here.
GRADES = {-1: 4, 1: 4, 2: 3, 3: 2, 4: 1}


def write_beir(cranfield: Path, folder: Path) -> Path:
    """Write corpus.jsonl, queries.jsonl and qrels.tsv; returns the folder.

    Query ids are their positions from 1, as in the judgements. train.tsv has the judgements of two in three queries,
    test.tsv those of the others, which are in test_queries.jsonl; without_unexplained.tsv has all except code -1.
    """
    folder.mkdir(parents=True, exist_ok=True)
    documents = [_document(fields) for fields in _records(cranfield / "cran.all.1400")]
    queries = [
        {"_id": str(number), "text": fields["W"]} for number, fields in enumerate(_records(cranfield / "cran.qry"), 1)
    ]
    test_queries = [query for query in queries if _is_test_query(query["_id"])]
    for name, rows in (("corpus", documents), ("queries", queries), ("test_queries", test_queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [line.split() for line in (cranfield / "cranqrel").read_text().splitlines()]
    write_judgements(folder / "qrels.tsv", judged)
    write_judgements(folder / "train.tsv", [row for row in judged if not _is_test_query(row[0])])
    write_judgements(folder / "test.tsv", [row for row in judged if _is_test_query(row[0])])
    write_judgements(folder / "without_unexplained.tsv", [row for row in judged if row[2] != "-1"])
    return folder


def _is_test_query(query: str) -> bool:
    return int(query) % 3 == 0


def write_judgements(path: Path, judged: list[list[str]]) -> None:
    """Write rows of query, document and the collection's code as BEIR's TSV."""
    lines = [f"{query}\t{document}\t{GRADES[int(code)]}\n" for query, document, code in judged]
    path.write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


def _document(fields: dict[str, str]) -> dict[str, str]:
    """Make a document without the title at the beginning of its abstract."""
    title, text = fields["T"], fields["W"]
    return {"_id": fields["I"], "title": title, "text": text.removeprefix(title).strip()}


def _records(path: Path) -> Iterator[dict[str, str]]:
    """Yield records of `.I number` and sections `.T`, `.A`, `.B`, `.W`, with single spaces."""
    for record in re.split(r"^\.I ", path.read_text(), flags=re.MULTILINE)[1:]:
        number, *sections = re.split(r"^\.([TABW])\s*$", record, flags=re.MULTILINE)
        yield {"I": number.strip()} | {
            name: " ".join(text.split()) for name, text in zip(sections[::2], sections[1::2], strict=True)
        }
