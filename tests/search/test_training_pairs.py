"""Training data from judgements: relevant passages, hard negatives, and no query in both splits."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertjax.search.rankings import Hits
from bertjax.search.records import Record, StoredDocuments, store_documents
from bertjax.search.training_pairs import write_training_pairs

QUERIES = [Record(f"q{number}", f"query {number}") for number in range(25)]


@pytest.fixture
def documents(tmp_path: Path) -> StoredDocuments:
    with store_documents(tmp_path) as add:
        for number in range(100):
            add(Record(f"d{number}", f"text {number}", f"Title {number}"))
    return StoredDocuments(tmp_path)


def write_data(folder: Path, documents: StoredDocuments, negatives: int = 3, judged: int = 24):
    """Write the data of 25 queries; query n of the first `judged` has the answers d(n) and d(n + 50)."""
    judgements = {f"q{n}": {f"d{n}": 2, f"d{n + 50}": 1, f"d{n + 1}": 0} for n in range(judged)}
    judgements.setdefault("q3", {})["not there"] = 1
    results = [Hits(np.arange(n, n + 11), np.zeros(11)) for n in range(25)]
    counts = write_training_pairs(folder, QUERIES, results, judgements, documents, negatives)
    rows = {
        (kind, split): [json.loads(line) for line in (folder / kind / f"{split}.jsonl").read_text().splitlines()]
        for kind in ("pairs", "relevance")
        for split in ("train", "dev")
    }
    return counts, rows


def test_rows_are_answers_and_hard_negatives(tmp_path, documents):
    counts, rows = write_data(tmp_path / "out", documents)
    assert (counts.queries, counts.positives, counts.negatives, counts.missing) == (24, 48, 24 * 6, 1)
    assert len(rows["pairs", "train"]) + len(rows["pairs", "dev"]) == 48
    assert (rows["pairs", "train"][0]["text"], rows["pairs", "train"][0]["text_b"]) == ("query 0", "Title 0 text 0")
    for split in ("train", "dev"):
        positive = [{"text": row["text"], "text_b": row["text_b"]} for row in rows["relevance", split] if row["label"]]
        negative = [(row["text"], row["text_b"]) for row in rows["relevance", split] if not row["label"]]
        assert positive == [{"text": row["text"], "text_b": row["text_b"]} for row in rows["pairs", split]]
        assert sorted(negative) == sorted(
            (row["text"], text) for row in rows["pairs", split] for text in row["negatives"]
        )
        for row in rows["relevance", split]:
            query, document = (int(row[name].split()[-1]) for name in ("text", "text_b"))
            assert document in ((query, query + 50) if row["label"] else range(query + 1, query + 11))
        pairs = [(row["text"], row["text_b"]) for row in rows["relevance", split]]
        assert len(set(pairs)) == len(pairs)


def test_query_is_in_one_split_with_own_negatives(tmp_path, documents):
    _, rows = write_data(tmp_path / "out", documents)
    sides = [
        {row["text"] for kind in ("pairs", "relevance") for row in rows[kind, split]} for split in ("train", "dev")
    ]
    assert [len(side) for side in sides] == [22, 2] and not sides[0] & sides[1]
    drawn = {}
    for row in rows["relevance", "train"]:
        query, document = (int(row[name].split()[-1]) for name in ("text", "text_b"))
        drawn.setdefault(query, set()).update([] if row["label"] else [document - query])
    assert len(set(map(frozenset, drawn.values()))) > 10
    again = write_data(tmp_path / "again", documents)[1]
    assert again == rows


@pytest.mark.parametrize(
    ("judged", "held_out"), [(2, 1), (3, 1), (4, 2), (5, 2), (9, 2), (10, 2), (19, 2), (20, 2), (23, 2)]
)
def test_few_queries_fill_both_splits(tmp_path, documents, judged, held_out):
    _, rows = write_data(tmp_path / "out", documents, judged=judged)
    sides = [{row["text"] for row in rows["pairs", split]} for split in ("train", "dev")]
    assert [len(side) for side in sides] == [judged - held_out, held_out]
    assert not sides[0] & sides[1]


def test_copies_of_answers_are_not_negatives(tmp_path):
    with store_documents(tmp_path) as add:
        for number, text in enumerate(["one", "two", "one", "three"]):
            add(Record(f"d{number}", text))
    results = [Hits(np.arange(4), np.zeros(4))] * 2
    grades = {"q0": {"d0": 1}, "q1": {"d1": 1}}
    counts = write_training_pairs(tmp_path / "out", QUERIES[:2], results, grades, StoredDocuments(tmp_path), 9)
    assert (counts.positives, counts.negatives) == (2, 2 + 3)
    rows = [json.loads(line) for line in (tmp_path / "out" / "relevance" / "train.jsonl").read_text().splitlines()]
    assert sorted((row["label"], row["text_b"]) for row in rows) == [(0, "three"), (0, "two"), (1, "one")]
    (row,) = [json.loads(line) for line in (tmp_path / "out" / "pairs" / "train.jsonl").read_text().splitlines()]
    assert len(row["negatives"]) == 9 and {*row["negatives"]} == {"two", "three"}


def pairs_in(folder: Path) -> list[dict]:
    return [json.loads(line) for name in ("train", "dev") for line in (folder / f"pairs/{name}.jsonl").open()]


def test_all_pairs_have_negatives_or_none(tmp_path, documents):
    """q0's only result is its answer; q1's results are its answer and d2, the answer of q2."""
    grades = {f"q{n}": {f"d{n}": 1} for n in range(3)}
    hits = [Hits(np.array(numbers), np.zeros(len(numbers))) for numbers in ([0], [1, 2], [2])]
    counts = write_training_pairs(tmp_path / "some", QUERIES[:3], hits, grades, documents, 2)
    assert {row["text"]: row["negatives"] for row in pairs_in(tmp_path / "some")} == {
        "query 0": ["Title 2 text 2"] * 2,
        "query 1": ["Title 2 text 2"] * 2,
    }
    assert (counts.positives, counts.negatives, counts.without_negatives) == (3, 2, 1)
    own = [Hits(np.array([n]), np.zeros(1)) for n in range(3)]
    counts = write_training_pairs(tmp_path / "none", QUERIES[:3], own, grades, documents, 2)
    assert [row.keys() for row in pairs_in(tmp_path / "none")] == [{"text", "text_b"}] * 3
    assert counts.without_negatives == 0


def test_few_candidates_are_all_taken(tmp_path, documents):
    counts, _ = write_data(tmp_path / "out", documents, negatives=100)
    assert counts.negatives == 24 * 10


def test_judgements_of_another_index_are_rejected(tmp_path, documents):
    with pytest.raises(ValueError, match="no query has a relevant document in the index; do the judgements"):
        write_training_pairs(tmp_path / "out", QUERIES, [Hits(np.arange(3), np.zeros(3))] * 25, {}, documents, 3)
    assert not (tmp_path / "out").exists()


def test_single_query_is_rejected(tmp_path, documents):
    with pytest.raises(ValueError, match="one query has a relevant document in the index; give two or more"):
        write_data(tmp_path / "out", documents, judged=1)
    assert not (tmp_path / "out").exists()
