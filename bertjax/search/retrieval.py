"""Finding documents for queries: by vectors, by words (BM25), and by both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from bertjax.embed.encoder import TextEncoder
from bertjax.search.index import SearchIndex, terms_of
from bertjax.search.nearest import nearest
from bertjax.search.rankings import Hits, fuse
from bertjax.tokenization.tokenizer import Tokenizer

By = Literal["vectors", "bm25", "both"]
WAYS: tuple[By, ...] = get_args(By)

_QUERIES = 256  # at once


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

    `done` is told how many more queries are through.
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
