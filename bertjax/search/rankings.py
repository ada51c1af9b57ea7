"""Rankings of documents: the best by score, and reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RANK_OFFSET = 60  # the constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)


class Hits(NamedTuple):
    """The best documents for a query, best first; ties in the order of the index."""

    documents: np.ndarray  # int64 [hits]: numbers in the index, from 0
    scores: np.ndarray  # floats [hits]


def best(documents: np.ndarray, scores: np.ndarray, top: int) -> Hits:
    """Select the `top` documents with the highest scores, or all if there are fewer; ties keep their order."""
    if len(scores) > top:
        # Sort only the candidates, including all ties of the last one.
        candidates = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
        documents, scores = documents[candidates], scores[candidates]
    order = np.argsort(-scores, kind="stable")[:top]
    return Hits(documents[order], scores[order])


def without(hits: Hits, document: int, top: int) -> Hits:
    """Drop a document, if present, and keep the `top` best of the others."""
    others = np.flatnonzero(hits.documents != document)[:top]
    return Hits(hits.documents[others], hits.scores[others])


def fuse(rankings: Sequence[Hits], top: int) -> Hits:
    """Reciprocal rank fusion: a document's score is the sum over rankings of 1 / (60 + its rank, from 1)."""
    documents = np.concatenate([hits.documents for hits in rankings])
    shares = np.concatenate([1 / (_RANK_OFFSET + 1 + np.arange(len(hits.documents))) for hits in rankings])
    documents, indices = np.unique(documents, return_inverse=True)
    return best(documents, np.bincount(indices, shares, len(documents)), top)
