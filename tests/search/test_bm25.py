"""BM25 scores match the formula, term by term in double precision."""

from __future__ import annotations

import tempfile
from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest
from family_models import TEXTS, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.search.bm25 import Bm25, write_bm25
from bertjax.search.index import search_terms

TERMS = 12


def build_bm25(folder: Path, documents: list[list[int]]) -> Bm25:
    write_bm25(folder, documents, TERMS)
    return Bm25(folder)


def by_formula(documents: list[list[int]], query: list[int]) -> list[float]:
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for terms in documents:
        score, counts = 0.0, Counter(terms)
        for term in query:
            frequency = sum(term in others for others in documents)
            idf = log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
            if counts[term]:
                score += idf * counts[term] / (counts[term] + 1.2 * (0.25 + 0.75 * len(terms) / mean))
        scores.append(score)
    return scores


TEXT = st.lists(st.integers(0, TERMS - 1), max_size=15)


@settings(max_examples=40)
@given(documents=st.lists(TEXT, min_size=1, max_size=20), query=TEXT)
def test_bm25_scores_match_formula(documents, query):
    with tempfile.TemporaryDirectory() as folder:
        hits = build_bm25(Path(folder), documents).search(np.array(query, int), len(documents))
        expected = by_formula(documents, query)
        assert sorted(hits.documents.tolist()) == [number for number, score in enumerate(expected) if score]
        assert hits.scores == pytest.approx([expected[number] for number in hits.documents], rel=1e-5)
        assert (np.diff(hits.scores) <= 0).all()


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_word_has_same_terms_in_every_position(family: str) -> None:
    """RoBERTa's tokenizer has other ids for the first word of a text, which would not match other positions."""
    tokenizer, words = tokenizer_of(family), " ".join(TEXTS).split()[:20]
    forth, back = search_terms([" ".join(words), " ".join(reversed(words))], tokenizer)
    assert sorted(forth.tolist()) == sorted(back.tolist()) and len(forth) >= len(words)
