"""Training data from judgements: queries with relevant passages, and hard negatives from the results.

`bertjax finetune` reads the files. pairs/ trains vectors: a passage answers its query, and the other passages of the
batch are negatives. relevance/ trains a reranker with hard negatives: passages that were retrieved for the query but
are not relevant. One judged query in ten (more if there are few) goes to the development set with all its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertjax.input.randomness import derive_key, permute
from bertjax.search.evaluation import relevant_documents
from bertjax.search.rankings import Hits
from bertjax.search.records import Judgements, Record, StoredDocuments
from bertjax.storage.files import replacing

PAIRS, RELEVANCE = "pairs", "relevance"

_DEV_PERIOD = 10  # one judged query in ten is for development
_LEAST_DEV = 2  # development queries, if there are at least twice as many
_OTHERS = 100  # negatives of other queries to choose from, for a query without its own
_SEED = 0


@dataclass
class PairCounts:
    """Counts of rows written and of answers left out."""

    queries: int = 0
    positives: int = 0
    negatives: int = 0
    missing: int = 0  # judged documents that are not in the index
    without_negatives: int = 0  # pairs left out because others have negatives, but no passage is a negative for them


def write_training_pairs(
    folder: Path,
    queries: Sequence[Record],
    results: Sequence[Hits],
    judgements: Judgements,
    documents: StoredDocuments,
    negatives: int,
) -> PairCounts:
    """Write train.jsonl and dev.jsonl of pairs/ and relevance/, with up to `negatives` for each relevant passage.

    Rows have `text` (the query) and `text_b` (the passage); in relevance/ also `label`, 1 or 0; in pairs/ also
    `negatives`, the same number for every pair (repeated if the query has fewer), unless no query has any. Negatives
    are drawn from the query's `results`, or if it has none from the negatives of all queries. Relevant passages and
    copies of them are never negatives. Raises ValueError unless two queries have a relevant passage in the index.
    """
    numbers = documents.numbers({document for grades in judgements.values() for document in relevant_documents(grades)})
    counts = PairCounts()
    rows: dict[str, list[tuple[Record, int, int, list[int]]]] = {"train": [], "dev": []}
    answered: list[tuple[Record, Hits, list[int]]] = []
    for query, hits in zip(queries, results, strict=True):
        relevant = relevant_documents(judgements.get(query.id, {}))
        answers = [numbers[document] for document in sorted(relevant) if document in numbers]
        counts.missing += len(relevant) - len(answers)
        if answers:
            answered.append((query, hits, answers))
    if not answered:
        raise ValueError("no query has a relevant document in the index; do the judgements belong to its documents?")
    if len(answered) == 1:
        raise ValueError(
            "only one query has a relevant document in the index; give two or more: one to train, one to test"
        )
    counts.queries, period = len(answered), min(_DEV_PERIOD, max(2, len(answered) // _LEAST_DEV))
    own = [
        _hard_negatives(hits.documents, answers, documents, negatives * len(answers), nth)
        for nth, (_, hits, answers) in enumerate(answered, 1)
    ]
    all_negatives = np.unique(np.concatenate(own))
    for nth, ((query, _, answers), drawn) in enumerate(zip(answered, own, strict=True), 1):
        if not len(drawn):
            few = permute(
                np.arange(min(_OTHERS, len(all_negatives))), len(all_negatives), derive_key(_SEED, "few", nth)
            )
            drawn = _hard_negatives(all_negatives[few], answers, documents, negatives * len(answers), nth)
        rows["train" if nth % period else "dev"] += [
            *((query, number, 1, _choose_negatives(drawn, place, negatives)) for place, number in enumerate(answers)),
            *((query, number, 0, []) for number in drawn.tolist()),
        ]
        counts.positives += len(answers)
        counts.negatives += len(drawn)
        counts.without_negatives += len(answers) if len(all_negatives) and not len(drawn) else 0
    for split, split_rows in rows.items():
        pairs = (row for row in split_rows if row[2] and (row[3] or not counts.negatives))
        _write(folder / PAIRS / f"{split}.jsonl", pairs, documents, labelled=False)
        _write(folder / RELEVANCE / f"{split}.jsonl", iter(split_rows), documents, labelled=True)
    return counts


def _hard_negatives(
    candidates: np.ndarray, answers: Sequence[int], documents: StoredDocuments, count: int, query: int
) -> np.ndarray:
    """Draw up to `count` candidates, int64, whose text is not an answer; the query's number seeds the draw."""
    relevant = {documents[number].whole for number in answers}
    others = np.setdiff1d(candidates, answers)
    others = others[[documents[int(number)].whole not in relevant for number in others]]
    chosen = np.arange(min(count, len(others)))
    return others[permute(chosen, len(others), derive_key(_SEED, "hard negatives", query))]


def _choose_negatives(drawn: np.ndarray, place: int, count: int) -> list[int]:
    """Choose `count` negatives for a query's answer number `place`."""
    return np.resize(np.roll(drawn, -place * count), count if len(drawn) else 0).tolist()


def _write(
    path: Path, rows: Iterator[tuple[Record, int, int, list[int]]], documents: StoredDocuments, labelled: bool
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        for query, number, label, wrong in rows:
            row: dict[str, object] = {"text": query.whole, "text_b": documents[number].whole}
            if labelled:
                row["label"] = label
            elif wrong:
                row["negatives"] = [documents[other].whole for other in wrong]
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
