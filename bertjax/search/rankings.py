"""Rankings: the best documents of many, and the fusion of two rankings into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_RANK_OFFSET = 60  # that first places count little more than second ones (Cormack, Clarke and Buettcher, SIGIR 2009)


class Hits(NamedTuple):
    """The best documents for a query, best first; of documents of one score the earlier one is first."""

    documents: np.ndarray  # int64 [hits]: numbers in the index, from 0
    scores: np.ndarray  # floats [hits]


def best(documents: np.ndarray, scores: np.ndarray, top: int) -> Hits:
    """The `top` documents of the highest scores, of which there may be fewer; those of one score are given in order."""
    if len(scores) > top:
        # Only those that can be among the best are sorted, with all that share the last place.
        kept = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
        documents, scores = documents[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")[:top]
    return Hits(documents[order], scores[order])


def fuse(rankings: Sequence[Hits], top: int) -> Hits:
    """Reciprocal rank fusion: a document's score is the sum over rankings of 1 / (60 + its rank, from 1)."""
    documents = np.concatenate([hits.documents for hits in rankings])
    shares = np.concatenate([1 / (_RANK_OFFSET + 1 + np.arange(len(hits.documents))) for hits in rankings])
    found, places = np.unique(documents, return_inverse=True)
    return best(found, np.bincount(places, shares, len(found)), top)
