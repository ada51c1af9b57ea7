"""The Cranfield collection as a folder in BEIR's layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

# How much a code is worth: by the collection's readme 1 is the best and 4 the least. It does not explain -1, which one
# document of nearly every query has and which is no judgement here, as in other conversions of the collection.
GRADES = {1: 4, 2: 3, 3: 2, 4: 1}
WITH_UNEXPLAINED = GRADES | {-1: 4}


def write_beir(cranfield: Path, folder: Path) -> Path:
    """Write corpus.jsonl, queries.jsonl, qrels.tsv and with_unexplained.tsv, in which -1 is the best grade; the folder.

    Queries have the numbers by which they are judged: those of their order.
    """
    folder.mkdir(parents=True, exist_ok=True)
    documents = [_document(fields) for fields in _records(cranfield / "cran.all.1400")]
    queries = [
        {"_id": str(number), "text": fields["W"]} for number, fields in enumerate(_records(cranfield / "cran.qry"), 1)
    ]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = [line.split() for line in (cranfield / "cranqrel").read_text().splitlines()]
    for name, grades in (("qrels", GRADES), ("with_unexplained", WITH_UNEXPLAINED)):
        lines = [f"{query}\t{document}\t{grades.get(int(code), 0)}\n" for query, document, code in judged]
        (folder / f"{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return folder


def _document(fields: dict[str, str]) -> dict[str, str]:
    """The abstracts repeat their titles."""
    title, text = fields["T"], fields["W"]
    return {"_id": fields["I"], "title": title, "text": text.removeprefix(title).strip()}


def _records(path: Path) -> Iterator[dict[str, str]]:
    """Records of `.I number` and sections `.T`, `.A`, `.B`, `.W`, their whitespace made single spaces."""
    for record in re.split(r"^\.I ", path.read_text(), flags=re.MULTILINE)[1:]:
        number, *sections = re.split(r"^\.([TABW])\s*$", record, flags=re.MULTILINE)
        yield {"I": number.strip()} | {
            name: " ".join(text.split()) for name, text in zip(sections[::2], sections[1::2], strict=True)
        }
