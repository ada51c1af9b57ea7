"""Duplicates and near-duplicates planted among random documents, compared with an exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from stored_documents import write_store

from bertjax.inspect import near_duplicates
from bertjax.inspect.near_duplicates import (
    HASHES,
    SHINGLE,
    find_duplicates,
    find_near_duplicates,
    signatures,
    similar_pairs,
)
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

TOKENIZER = WordPiece([*SPECIAL_TOKENS, *(f"w{n}" for n in range(400))], TextRules(True, True))
NONE = np.zeros(0, np.int64)


def ignore(more):
    """Ignore progress."""


def random_document(draw, low=20, high=300):
    return draw.integers(5, 405, draw.integers(low, high)).tolist()


def in_sentences(draw, tokens):
    """Cut a document into random sentences, whose ends must not matter."""
    cuts = sorted(draw.choice(np.arange(1, len(tokens)), min(len(tokens) - 1, 3), replace=False).tolist())
    return [tokens[a:b] for a, b in itertools.pairwise([0, *cuts, len(tokens)])]


def make_split(path, documents, seed=0):
    draw = np.random.default_rng(seed)
    cut = [in_sentences(draw, tokens) for tokens in documents]
    return TokenStore.open(write_store(path / "store", {"train": cut}, TOKENIZER, documents_per_shard=13)).split(
        "train"
    )


def test_only_equal_documents_are_duplicates(tmp_path):
    draw = np.random.default_rng(1)
    documents = [random_document(draw) for _ in range(50)]
    documents += [documents[3]] * 4 + [documents[7]] + [documents[9][:-1], documents[9][::-1], [5], [5], [5, 5]]
    draw.shuffle(documents := [list(d) for d in documents])
    result = find_duplicates(make_split(tmp_path, documents), ignore, examples=2)
    copies = [n for n, document in enumerate(documents) if document in documents[:n]]
    assert result.copies.tolist() == copies
    assert (result.documents, result.share, result.groups) == (len(documents), 1.0, 3)
    assert result.copied_tokens == sum(len(documents[n]) for n in copies)
    sizes = sorted((documents.count(d) for d in documents), reverse=True)
    assert [size for _, size in result.largest] == [sizes[0], 2] == [5, 2]
    assert all(
        documents.index(documents[n]) == n and documents.count(documents[n]) == size for n, size in result.largest
    )


def test_sample_has_all_copies_or_none(tmp_path):
    draw = np.random.default_rng(2)
    documents = [random_document(draw, 5, 20) for _ in range(300)] * 3
    result = find_duplicates(make_split(tmp_path, documents), ignore, examples=3, most_documents=300)
    assert result.share == pytest.approx(1 / 3)
    assert 60 < result.groups < 140
    assert result.documents == 3 * result.groups and len(result.copies) == 2 * result.groups


def shingles(tokens):
    return {tuple(tokens[n : n + SHINGLE]) for n in range(len(tokens) - SHINGLE + 1)}


def jaccard(first, second):
    return len(shingles(first) & shingles(second)) / len(shingles(first) | shingles(second))


def change_tokens(draw, tokens, changes):
    """Copy a document with some tokens replaced."""
    copy = list(tokens)
    for place in draw.choice(len(tokens), changes, replace=False).tolist():
        copy[place] = int(draw.integers(5, 405))
    return copy


def planted(seed):
    draw = np.random.default_rng(seed)
    documents = [random_document(draw, 100, 300) for _ in range(40)]
    return documents + [change_tokens(draw, documents[n], changes) for n in range(30) for changes in (1, n // 2)]


def test_estimates_match_jaccard_similarities(tmp_path):
    documents = planted(3)
    minima = signatures(make_split(tmp_path, documents), np.arange(len(documents)), TOKENIZER.vocab_size, ignore)
    assert minima.shape == (len(documents), HASHES) and minima.dtype == np.uint32
    errors, true = [], []
    for a, b in itertools.combinations(range(len(documents)), 2):
        true.append(jaccard(documents[a], documents[b]))
        errors.append((minima[a] == minima[b]).mean() - true[-1])
    errors, true = np.array(errors), np.array(true)
    spread = np.sqrt(true * (1 - true) / HASHES)
    between = (true > 0.1) & (true < 0.95)
    assert np.count_nonzero(between) > 30
    assert abs(errors[between].mean()) < 0.02
    assert errors[between].std() < 1.3 * spread[between].mean()
    assert abs(errors[true == 0]).max() < 0.05


def test_only_similar_documents_are_found(tmp_path):
    documents = planted(4)
    result = find_near_duplicates(make_split(tmp_path, documents), TOKENIZER.vocab_size, NONE, ignore, examples=100)
    minima = signatures(
        make_split(tmp_path / "again", documents), np.arange(len(documents)), TOKENIZER.vocab_size, ignore
    )
    pairs, similarity = similar_pairs(minima)
    pairs = [tuple(pair) for pair in pairs.tolist()]
    every = list(itertools.combinations(range(len(documents)), 2))
    # Pairs further than three standard errors from the threshold must be classified correctly.
    assert {pair for pair in every if jaccard(*(documents[n] for n in pair)) > 0.9} <= set(pairs)
    assert all(jaccard(*(documents[n] for n in pair)) > 0.69 for pair in pairs)
    assert set(pairs) == {(a, b) for a, b in every if (minima[a] == minima[b]).mean() >= 0.8}
    assert (similarity >= 0.8).all()
    assert result.pairs == len(pairs) > 20 and result.documents == len(documents)
    groups = linked(len(documents), pairs)
    assert result.groups == len(groups)
    assert result.copies == sum(len(group) - 1 for group in groups)
    assert result.copied_tokens == sum(len(documents[n]) for group in groups for n in sorted(group)[1:])
    assert sorted(e.group for e in result.examples) == sorted(map(len, groups))
    assert all(any({e.first, e.second} <= group for group in groups) for e in result.examples)


def linked(number, pairs):
    """The connected components of two or more items, by a plain search."""
    groups = [{n} for n in range(number)]
    for a, b in pairs:
        one, other = (next(g for g in groups if n in g) for n in (a, b))
        if one is not other:
            groups.remove(other)
            one |= other
    return [group for group in groups if len(group) > 1]


def test_exact_copies_and_short_documents_are_left_out(tmp_path):
    draw = np.random.default_rng(5)
    first = random_document(draw, 200, 300)
    documents = [first, first, change_tokens(draw, first, 2), [7, 8, 9], [7, 8, 9], random_document(draw)]
    split = make_split(tmp_path, documents)
    copies = find_duplicates(split, ignore, 0).copies
    assert copies.tolist() == [1, 4]
    result = find_near_duplicates(split, TOKENIZER.vocab_size, copies, ignore, examples=5)
    assert (result.documents, result.pairs, result.groups, result.copies) == (3, 1, 1, 1)
    assert [(e.first, e.second, e.group) for e in result.examples] == [(0, 2, 2)]


def test_large_bucket_is_compared_in_parts(monkeypatch):
    compared = []
    agreement = near_duplicates._agreement
    monkeypatch.setattr(near_duplicates, "_agreement", lambda m, a, b: compared.append(len(a)) or agreement(m, a, b))
    minima = np.tile(np.arange(HASHES, dtype=np.uint32), (1000, 1))
    pairs, _ = similar_pairs(minima)
    assert len(np.unique(pairs)) == 1000
    # Once in the first band, because later bands add nothing, and once for the result.
    assert sum(compared) == 2 * len(pairs) and 15_000 < len(pairs) < 1000 * near_duplicates.NEIGHBOURS


def test_documents_without_pairs_and_no_documents(tmp_path):
    split = make_split(tmp_path, [[5, 6], [7, 8, 9]])
    result = find_near_duplicates(split, TOKENIZER.vocab_size, NONE, ignore, examples=5)
    assert (result.documents, result.pairs, result.groups, result.examples) == (0, 0, 0, ())
    empty = TokenStore.open(tmp_path / "store").split("held_out")
    assert find_duplicates(empty, ignore, 3).groups == 0
    assert find_near_duplicates(empty, TOKENIZER.vocab_size, NONE, ignore, 3).documents == 0


@pytest.mark.parametrize(("limit", "most"), [("MOST_DOCUMENTS", 40), ("MOST_TOKENS", 8000)])
def test_share_of_a_large_split_is_reported(tmp_path, monkeypatch, limit, most):
    split = make_split(tmp_path, planted(6))
    monkeypatch.setattr(near_duplicates, limit, most)
    near = find_near_duplicates(split, TOKENIZER.vocab_size, NONE, ignore, 3)
    share = most / (100 if limit == "MOST_DOCUMENTS" else split.num_tokens)
    assert near.share == pytest.approx(share)
    assert 0.5 * share < near.documents / 100 < 1.6 * share
    assert near == find_near_duplicates(split, TOKENIZER.vocab_size, NONE, ignore, 3)


def test_limits_keep_ordinary_corpora_whole():
    assert near_duplicates.MOST_EXACT >= 10_000_000 and near_duplicates.MOST_TOKENS >= 200_000_000
