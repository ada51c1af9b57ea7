"""BM25 ranking by bm25s, with Lucene's formula and defaults for k1 and b.

Source: Kamphuis, de Vries, Boytsov and Lin, "Which BM25 Do You Mean?" (ECIR 2020), "Lucene (accurate)", without the
constant factor k1 + 1. Terms are tokens of the model's vocabulary, which works for all languages of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import bm25s
import numpy as np

from bertjax.search.rankings import Hits, best

K1, B = 1.2, 0.75


def write_bm25(folder: Path, documents: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Score documents, given as sequences of token ids, and write the files that `Bm25` reads.

    Needs about 40 bytes of memory for each term of each document.
    """
    index = bm25s.BM25(K1, B, method="lucene")
    ids = cast(list[list[int]], documents)  # bm25s accepts any sequences
    with np.errstate(invalid="ignore"):  # 0 / 0, if all documents are empty
        index.scores = index.build_index_from_ids(list(range(vocab_size)), ids, show_progress=False)
    index.vocab_dict = {}  # terms are ids
    index.save(folder, show_progress=False)


class Bm25:
    """BM25 over the memory-mapped files of an index."""

    def __init__(self, folder: Path) -> None:
        self._index = bm25s.BM25.load(folder, mmap=True, load_vocab=False)

    def __len__(self) -> int:
        """The number of documents."""
        return self._index.scores["num_docs"]

    def search(self, terms: np.ndarray, top: int) -> Hits:
        """Find the `top` best documents with a term of the query, int [terms]; ties are in the order of documents."""
        scores = self._index.get_scores_from_ids(terms.tolist())
        matches = np.flatnonzero(scores)
        return best(matches, scores[matches], top)
