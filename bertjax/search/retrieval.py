"""Finding documents for queries: by vectors, by words (BM25), and by both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from bertjax.embed.encoder import TextEncoder
from bertjax.search.index import SearchIndex, terms_of
from bertjax.search.rankings import Hits, best, fuse
from bertjax.tokenization.tokenizer import Tokenizer

By = Literal["vectors", "bm25", "both"]
WAYS: tuple[By, ...] = get_args(By)

_QUERIES = 256  # per batch
# Documents scored at a time, which bounds memory. On CPU cores NumPy took 0.33 s of processor time for 256 queries
# and 100,000 documents of 384 dims, and jax.lax.top_k 0.28 to 0.60 s, beside a compilation for each number of queries.
_DOCUMENTS = 1 << 14


def retrieve(
    index: SearchIndex,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    queries: Sequence[str],
    by: By,
    top: int,
    done: Callable[[int], object] = lambda more: None,
) -> dict[By, list[Hits]]:
    """The `top` best documents for each query, in order, by vectors, by words, or by both and by each of them alone.

    `done` receives the number of queries answered since its last call.
    """
    found: dict[By, list[Hits]] = {way: [] for way in WAYS if by in (way, "both")}
    for start in range(0, len(queries), _QUERIES):
        some = list(queries[start : start + _QUERIES])
        if "vectors" in found:
            vectors = np.stack([embedding.vectors for embedding in encoder.encode(some)])
            found["vectors"] += nearest(index.vectors, vectors, top)
        if "bm25" in found:
            found["bm25"] += [index.words.search(terms, top) for terms in terms_of(some, tokenizer)]
        done(len(some))
    if by == "both":
        found["both"] = [fuse(pair, top) for pair in zip(found["vectors"], found["bm25"], strict=True)]
    return found


def nearest(vectors: np.ndarray, queries: np.ndarray, top: int) -> list[Hits]:
    """Exact search: the `top` documents with the largest inner products with each query.

    vectors float32 [documents, D], which may lie in a file; queries float32 [queries, D].
    """
    held = [Hits(np.empty(0, np.int64), np.empty(0, np.float32))] * len(queries)
    for start in range(0, len(vectors), _DOCUMENTS):
        scores = queries @ vectors[start : start + _DOCUMENTS].T
        for query, row in enumerate(scores):
            held[query] = _with_block(held[query], row, start, top)
    return held


def _with_block(held: Hits, scores: np.ndarray, start: int, top: int) -> Hits:
    """The best of those held and of the documents from number `start` on, with these scores."""
    # A tie with the last one held ranks after it, being later in the index.
    kept = np.flatnonzero(scores > held.scores[-1]) if len(held.scores) == top else np.arange(len(scores))
    return best(np.concatenate([held.documents, start + kept]), np.concatenate([held.scores, scores[kept]]), top)
