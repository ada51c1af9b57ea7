"""BM25 against its formula, term by term in double precision, however many parts its postings are sorted in."""

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

from bertjax.search import bm25
from bertjax.search.bm25 import Bm25, PostingsWriter
from bertjax.search.index import terms_of

TERMS = 12


def written(folder: Path, documents: list[list[int]]) -> Bm25:
    writer = PostingsWriter(folder, TERMS)
    for terms in documents:
        writer.add(np.array(terms, np.uint32))
    writer.finish()
    return Bm25(folder, len(documents))


def by_formula(documents: list[list[int]], query: list[int]) -> list[float]:
    filled = [terms for terms in documents if terms]
    mean = sum(map(len, filled)) / max(len(filled), 1)
    scores = []
    for terms in documents:
        score, counts = 0.0, Counter(terms)
        for term in query:
            frequency = sum(term in others for others in filled)
            idf = log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
            if counts[term]:
                score += idf * counts[term] / (counts[term] + 1.2 * (0.25 + 0.75 * len(terms) / mean))
        scores.append(score)
    return scores


TEXT = st.lists(st.integers(0, TERMS - 1), max_size=15)


@settings(max_examples=40)
@given(documents=st.lists(TEXT, min_size=1, max_size=20), query=TEXT, held=st.sampled_from([1, 9, 1 << 20]))
def test_scores_are_those_of_the_formula(documents, query, held):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(bm25, "_HELD_TOKENS", held)
        found = written(Path(folder), documents)
        hits = found.search(np.array(query, int), len(documents))
        wanted = by_formula(documents, query)
        assert sorted(hits.documents.tolist()) == [number for number, score in enumerate(wanted) if score]
        assert hits.scores == pytest.approx([wanted[number] for number in hits.documents], rel=1e-5)
        assert (np.diff(hits.scores) <= 0).all()
        assert not list(Path(folder).glob(".*"))


def test_a_score_by_hand(tmp_path):
    hits = written(tmp_path, [[0, 0, 1], [1], [2, 3]]).search(np.array([0, 1, 1]), 10)
    assert hits.documents.tolist() == [0, 1]
    length = 1.2 * (0.25 + 0.75 * 3 / 2)
    assert hits.scores[0] == pytest.approx(
        log(1 + 2.5 / 1.5) * 2 / (2 + length) + 2 * log(1 + 1.5 / 2.5) / (1 + length)
    )
    assert hits.scores[1] == pytest.approx(2 * log(1 + 1.5 / 2.5) / (1 + 1.2 * (0.25 + 0.75 / 2)))


def test_parts_give_the_same_bits(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    documents = [draw.integers(0, TERMS, draw.integers(0, 30)).tolist() for _ in range(200)]
    files = {}
    for held in (1 << 20, 100):
        monkeypatch.setattr(bm25, "_HELD_TOKENS", held)
        folder = tmp_path / str(held)
        folder.mkdir()
        written(folder, documents)
        files[held] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files[100] == files[1 << 20]
    assert set(files[100]) == {bm25.OFFSETS, bm25.DOCUMENTS, bm25.WEIGHTS}


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_a_word_has_the_same_terms_wherever_it_is(family: str) -> None:
    """RoBERTa's tokenizer has other ids for the first word of a text, which no other text would share."""
    tokenizer, words = tokenizer_of(family), " ".join(TEXTS).split()[:20]
    forth, back = terms_of([" ".join(words), " ".join(reversed(words))], tokenizer)
    assert sorted(forth.tolist()) == sorted(back.tolist()) and len(forth) >= len(words)
