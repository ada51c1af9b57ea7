"""nDCG matches scikit-learn, and all figures match cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.search.evaluation import evaluate, ndcg, recall, reciprocal_rank

GRADES = {"a": 3, "b": 0, "c": 1, "d": -1, "e": 2}


@settings(max_examples=60)
@given(
    grades=st.lists(st.integers(0, 4), min_size=2, max_size=40), seed=st.integers(0, 2**32 - 1), k=st.integers(1, 50)
)
def test_ndcg_matches_scikit_learn(grades, seed, k):
    ndcg_score = pytest.importorskip("sklearn.metrics").ndcg_score
    scores = np.random.default_rng(seed).permutation(len(grades)).astype(float)
    ranked = [str(number) for number in np.argsort(-scores)]
    value = ndcg(ranked, {str(number): grade for number, grade in enumerate(grades)}, k)
    assert value == pytest.approx(ndcg_score([grades], [scores], k=k), abs=1e-12)


def test_figures_by_hand():
    ranked = ["x", "c", "a", "d", "b"]
    gained = 1 / np.log2(3) + 3 / np.log2(4)
    assert ndcg(ranked, GRADES, 10) == pytest.approx(gained / (3 + 2 / np.log2(3) + 1 / np.log2(4)))
    assert ndcg(ranked, GRADES, 2) == pytest.approx((1 / np.log2(3)) / (3 + 2 / np.log2(3)))
    assert recall(ranked, GRADES, 10) == pytest.approx(2 / 3)
    assert recall(ranked, GRADES, 2) == pytest.approx(1 / 3)
    assert reciprocal_rank(ranked, GRADES, 10) == 1 / 2
    assert reciprocal_rank(ranked, GRADES, 1) == 0
    assert ndcg(["a", "e", "c"], GRADES, 10) == 1
    assert ndcg([], GRADES, 10) == recall([], GRADES, 10) == reciprocal_rank([], GRADES, 10) == 0


def test_grades_of_0_or_less_are_not_relevant():
    none = {"b": 0, "d": -1}
    assert ndcg(["d", "b"], none, 10) == recall(["d", "b"], none, 10) == reciprocal_rank(["d", "b"], none, 10) == 0
    assert ndcg(["d", "a"], {"a": 1, "d": -5}, 10) == pytest.approx(1 / np.log2(3))


def test_means_cover_queries_with_relevant_documents():
    judgements = {"1": {"a": 1}, "2": {"a": 0}, "3": {"b": 2}, "not asked": {"a": 1}}
    figures = evaluate({"1": ["a"], "2": ["a"], "3": ["x", "b", "y", "z"], "not judged": ["a"]}, judgements)
    assert figures.queries == 2
    assert figures.ndcg == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert figures.recall == 1
    assert figures.reciprocal_rank == 0.75
    assert figures.judged == (1 + 1 / 4) / 2


def test_figures_are_limited_by_depth():
    figures = evaluate({"1": ["x", "b", "a"]}, {"1": {"a": 1, "b": 1, "c": 1}}, depth=2)
    assert figures.ndcg == pytest.approx((1 / np.log2(3)) / (1 + 1 / np.log2(3)))
    assert (figures.recall, figures.reciprocal_rank, figures.judged) == (1 / 3, 0.5, 0.5)


def test_judgements_of_other_queries_are_rejected():
    with pytest.raises(ValueError, match="ids such as '1', and the judgements 'q1'; do the judgements belong"):
        evaluate({"1": ["a"]}, {"q1": {"a": 1}})
