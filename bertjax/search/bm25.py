"""BM25 ranking by bm25s, with the formula of Lucene and its defaults for k1 and b.

Source: Kamphuis, de Vries, Boytsov and Lin, "Which BM25 Do You Mean?" (ECIR 2020), "Lucene (accurate)", without the
constant factor k1 + 1. A term is a token of the model's vocabulary, so that any language has terms that its tokenizer
can read.
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
    """Write the scores of documents, which are sequences of token ids, as the files that `Bm25` reads.

    Memory: about 40 bytes for each term of each document.
    """
    index = bm25s.BM25(K1, B, method="lucene")
    ids = cast(list[list[int]], documents)  # any sequences will do
    with np.errstate(invalid="ignore"):  # 0 / 0, if all documents are empty
        index.scores = index.build_index_from_ids(list(range(vocab_size)), ids, show_progress=False)
    index.vocab_dict = {}  # terms are ids
    index.save(folder, show_progress=False)


class Bm25:
    """The memory-mapped files of an index."""

    def __init__(self, folder: Path) -> None:
        self._index = bm25s.BM25.load(folder, mmap=True, load_vocab=False)

    def __len__(self) -> int:
        """The number of documents."""
        return self._index.scores["num_docs"]

    def search(self, terms: np.ndarray, top: int) -> Hits:
        """Find the `top` best documents that have a term of the query, int [terms]; ties keep the documents' order."""
        scores = self._index.get_scores_from_ids(terms.tolist())
        matches = np.flatnonzero(scores)
        return best(matches, scores[matches], top)
