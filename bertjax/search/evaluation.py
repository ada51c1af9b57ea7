"""Evaluation of rankings against graded judgements: nDCG, recall and reciprocal rank, computed like trec_eval.

Documents without a judgement, or with a grade of 0 or less, count as not relevant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.search.records import Judgements

Grades = Mapping[str, int]  # grade by document, for one query

RANKED = 10  # depth of nDCG and reciprocal rank
RECALLED = 100  # depth of recall


@dataclass(frozen=True)
class Figures:
    """Means over the queries that have a relevant document."""

    ndcg: float  # of the first `RANKED`
    recall: float  # of the first `RECALLED`
    reciprocal_rank: float  # within the first `RANKED`
    judged: float  # share of the first `RANKED` with a judgement; if it is low, the other figures are underestimates
    queries: int
    ranked: int  # depth used: `RANKED`, or the number of documents retrieved if that is smaller
    recalled: int  # likewise for `RECALLED`


def ndcg(ranked: Sequence[str], grades: Grades, first: int) -> float:
    """Normalised discounted cumulative gain of the `first` documents (Jarvelin and Kekalainen, 2002).

    A document's gain is its grade, discounted by log2(1 + rank). The best order of all judged documents has 1; without
    relevant documents the result is 0.
    """

    def discounted(gains: Sequence[int]) -> float:
        return float(np.sum(np.array(gains) / np.log2(np.arange(2, len(gains) + 2))))

    gains = [max(grades.get(document, 0), 0) for document in ranked[:first]]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:first]
    return discounted(gains) / discounted(ideal) if any(ideal) else 0.0


def recall(ranked: Sequence[str], grades: Grades, first: int) -> float:
    """Share of the relevant documents that are among the `first`; 0 without relevant documents."""
    relevant = relevant_documents(grades)
    return len(relevant & set(ranked[:first])) / max(len(relevant), 1)


def reciprocal_rank(ranked: Sequence[str], grades: Grades, first: int) -> float:
    """1 / the rank of the first relevant document, from 1; 0 if it is not among the `first`."""
    relevant = relevant_documents(grades)
    return next((1 / rank for rank, document in enumerate(ranked[:first], 1) if document in relevant), 0.0)


def relevant_documents(grades: Grades) -> set[str]:
    """Select the documents with a grade above 0."""
    return {document for document, grade in grades.items() if grade > 0}


def evaluate(rankings: Mapping[str, Sequence[str]], judgements: Judgements, depth: int = RECALLED) -> Figures:
    """Evaluate rankings (documents by query) over the queries that have a relevant document.

    `depth` is the number of documents retrieved, which limits the depth of the figures. Raises ValueError if no query
    has a relevant document.
    """
    judged = [(ranked, judgements[query]) for query, ranked in rankings.items() if query in judgements]
    judged = [(ranked, grades) for ranked, grades in judged if relevant_documents(grades)]
    if not judged:
        query_ids, judged_ids = (", ".join(map(repr, [*ids][:3])) for ids in (rankings, judgements))
        raise ValueError(
            f"no query has a relevant document: the queries have ids such as {query_ids}, and the judgements "
            f"{judged_ids}; do the judgements belong to these queries?"
        )
    first, recalled = min(RANKED, depth), min(RECALLED, depth)
    return Figures(
        ndcg=float(np.mean([ndcg(ranked, grades, first) for ranked, grades in judged])),
        recall=float(np.mean([recall(ranked, grades, recalled) for ranked, grades in judged])),
        reciprocal_rank=float(np.mean([reciprocal_rank(ranked, grades, first) for ranked, grades in judged])),
        judged=float(
            np.mean([len(grades.keys() & {*ranked[:first]}) / max(len(ranked[:first]), 1) for ranked, grades in judged])
        ),
        queries=len(judged),
        ranked=first,
        recalled=recalled,
    )
