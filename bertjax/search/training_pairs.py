"""Training data from judgements: queries with relevant passages, and hard negatives from the results.

The files are those that `bertjax finetune` reads: pairs/ trains vectors (a passage answers its own query, and no other
of the batch that has not got it too), relevance/ trains a reranker, whose negatives are hard: they were found for the
query and are no answer. One judged query in ten, of few more, and all that is about it, is the development set.
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

_ONE_IN = 10  # judged queries is for development,
_AT_LEAST = 2  # but so many where there are twice as many: the answers of one query alone are no task
_SEED = 0


@dataclass
class PairCounts:
    """What was written."""

    queries: int = 0
    positives: int = 0
    negatives: int = 0
    missing: int = 0  # judged documents that are not in the index


def write_training_pairs(
    folder: Path,
    queries: Sequence[Record],
    found: Sequence[Hits],
    judgements: Judgements,
    documents: StoredDocuments,
    negatives: int,
) -> PairCounts:
    """Write train.jsonl and dev.jsonl of pairs/ and relevance/, with up to `negatives` for a passage that answers.

    Rows have `text` (the query), `text_b` (the passage), and in relevance/ `label`, 1 or 0. Negatives are drawn from
    what was `found` for the query and neither was judged an answer nor is a copy of one. Raises ValueError unless two
    queries have an answer in the index.
    """
    numbers = documents.numbers({document for grades in judgements.values() for document in relevant_documents(grades)})
    counts, rows = PairCounts(), {"train": [], "dev": []}
    answered: list[tuple[Record, Hits, list[int]]] = []
    for query, hits in zip(queries, found, strict=True):
        relevant = relevant_documents(judgements.get(query.id, {}))
        answers = [numbers[document] for document in sorted(relevant) if document in numbers]
        counts.missing += len(relevant) - len(answers)
        if answers:
            answered.append((query, hits, answers))
    counts.queries, one_in = len(answered), _one_in(len(answered))
    for nth, (query, hits, answers) in enumerate(answered, 1):
        others = _drawn(_no_answers(hits, answers, documents), negatives * len(answers), nth)
        made = [(query, int(number), label) for label, some in ((1, answers), (0, others)) for number in some]
        rows["train" if nth % one_in else "dev"] += made
        counts.positives += len(answers)
        counts.negatives += len(others)
    for split, made in rows.items():
        _write(folder / PAIRS / f"{split}.jsonl", _lines((row for row in made if row[2]), documents, labelled=False))
        _write(folder / RELEVANCE / f"{split}.jsonl", _lines(iter(made), documents, labelled=True))
    return counts


def _one_in(queries: int) -> int:
    """The period of development queries: one in so many. Raises ValueError if there are not enough."""
    if not queries:
        raise ValueError("no query has an answer in the index; are the judgements those of its documents?")
    if queries == 1:
        raise ValueError("one query has an answer in the index; give two or more: to learn from, and to measure by")
    return min(_ONE_IN, max(2, queries // _AT_LEAST))


def _no_answers(hits: Hits, answers: Sequence[int], documents: StoredDocuments) -> np.ndarray:
    """The documents that were found and have the text of no answer: int64, ascending."""
    right = {documents[number].whole for number in answers}
    others = np.setdiff1d(hits.documents, answers)
    return others[[documents[int(number)].whole not in right for number in others]]


def _drawn(candidates: np.ndarray, wanted: int, query: int) -> np.ndarray:
    """Some of the candidates, for each query others."""
    numbers = np.arange(min(wanted, len(candidates)))
    return candidates[permute(numbers, len(candidates), derive_key(_SEED, "hard negatives", query))]


def _lines(rows: Iterator[tuple[Record, int, int]], documents: StoredDocuments, labelled: bool) -> Iterator[str]:
    for query, number, label in rows:
        row = {"text": query.whole, "text_b": documents[number].whole} | ({"label": label} if labelled else {})
        yield json.dumps(row, ensure_ascii=False)


def _write(path: Path, lines: Iterator[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)
