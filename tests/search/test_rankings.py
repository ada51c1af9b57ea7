"""Rankings match a full sort for any block size; fusion and removal match cases by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.search import retrieval as module
from bertjax.search.rankings import Hits, best, fuse, without
from bertjax.search.retrieval import nearest


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("top", [1, 10, 100, 600])
def test_nearest_matches_a_full_sort(monkeypatch, block, top):
    monkeypatch.setattr(module, "_DOCUMENTS", block)
    draw = np.random.default_rng(0)
    # With small integers, inner products are exact, and many are equal.
    vectors = draw.integers(-2, 3, (500, 6)).astype(np.float32)
    queries = draw.integers(-2, 3, (5, 6)).astype(np.float32)
    scores = queries @ vectors.T
    for row, hits in zip(scores, nearest(vectors, queries, top), strict=True):
        expected = np.lexsort((np.arange(len(row)), -row))[:top]
        assert hits.documents.tolist() == expected.tolist()
        assert np.array_equal(hits.scores, row[expected])


def test_nearest_reads_memory_mapped_vectors(tmp_path):
    draw = np.random.default_rng(1)
    vectors, queries = draw.normal(size=(300, 8)).astype(np.float32), draw.normal(size=(2, 8)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = nearest(np.load(tmp_path / "vectors.npy", mmap_mode="r"), queries, 5)
    for hits, same in zip(mapped, nearest(vectors, queries, 5), strict=True):
        assert np.array_equal(hits.documents, same.documents) and np.array_equal(hits.scores, same.scores)


def test_best_keeps_the_order_of_ties():
    hits = best(np.array([3, 5, 8, 9]), np.array([1.0, 2.0, 1.0, 1.0]), 3)
    assert hits.documents.tolist() == [5, 3, 8]
    assert best(np.array([], int), np.array([]), 3).documents.tolist() == []


def test_without_drops_one_document():
    hits = Hits(np.array([5, 3, 8]), np.array([2.0, 1.0, 0.5]))
    for document, expected in ((5, [3, 8]), (3, [5, 8]), (8, [5, 3]), (-1, [5, 3]), (4, [5, 3])):
        left = without(hits, document, 2)
        assert left.documents.tolist() == expected
        assert left.scores.tolist() == [dict(zip(*hits, strict=True))[number] for number in expected]


def test_fuse_by_hand():
    first, second = Hits(np.array([4, 7, 1]), np.zeros(3)), Hits(np.array([7, 9]), np.zeros(2))
    fused = fuse([first, second], 10)
    assert fused.documents.tolist() == [7, 4, 9, 1]
    assert fused.scores == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63])
    assert fuse([first, second], 2).documents.tolist() == [7, 4]
    nothing = Hits(np.array([], int), np.array([]))
    assert fuse([nothing, second], 10).documents.tolist() == [7, 9]
    assert fuse([nothing, nothing], 10).documents.tolist() == []
