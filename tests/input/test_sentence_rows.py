"""Rows of running text: consecutive whole sentences, each used once, filling rows as far as possible."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import FIRST_TOKEN, MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input import sentence_rows
from bertjax.input.batches import RowBatches
from bertjax.input.layout import BERT
from bertjax.input.sentence_rows import notes_on_cuts

corpora = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=12), min_size=2, max_size=8)
SPECIALS = Specials()
DATA = DataConfig(sequence_length=24, max_predictions=4, mask_probability=0.0, rows="doc_sentences")


def make_epoch(documents: list[list[int]], data: DataConfig, epoch: int = 0) -> dict[str, np.ndarray]:
    """All rows of an epoch's plan before masking; token n of the split is FIRST_TOKEN + n."""
    split = MemorySplit(documents, all_different=True)
    batches = RowBatches(split, replace(SPECIALS, vocab_size=10**6), data, seed=0)
    batches._epochs.rows = 10**9
    batch = batches.rows(epoch * 10**9 + np.arange(len(batches._epochs.get(epoch))))
    row, slot = np.nonzero(batch["mlm_weights"])
    batch["input_ids"][row, batch["mlm_positions"][row, slot]] = batch["mlm_labels"][row, slot]
    return batch


def sorted_rows(batch: dict[str, np.ndarray]) -> list[list[int]]:
    """The ids of each row without padding, sorted."""
    used = (batch["sequence_ids"] > 0).sum(axis=1)
    return sorted(ids[:n].tolist() for ids, n in zip(batch["input_ids"], used, strict=True))


def by_the_rule(documents: list[list[int]], length: int, longest_walk: int) -> list[list[int]]:
    """Reference implementation of `doc_sentences`, one sentence at a time."""
    rows, token = [], FIRST_TOKEN
    for document in documents:
        pieces = -(-len(document) // longest_walk)
        edges = [len(document) * piece // pieces for piece in range(pieces + 1)]
        row: list[int] = []
        for number, size in enumerate(document):
            sentence = list(range(token, token + size))[: length - 2]
            token += size
            if row and (number in edges or len(row) + size > length - 2):
                rows.append(row)
                row = []
            row = row + sentence
        rows.append(row)
    return sorted([SPECIALS.cls_id, *row, SPECIALS.sep_id] for row in rows)


@settings(max_examples=80, derandomize=True)
@given(corpora, st.integers(8, 40), st.integers(2, 9))
def test_doc_sentences_match_the_plain_rule(documents: list, length: int, longest_walk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_rows, "LONGEST_WALK", longest_walk)
        batch = make_epoch(documents, replace(DATA, sequence_length=length))
    assert sorted_rows(batch) == by_the_rule(documents, length, longest_walk)
    assert not batch["token_type_ids"].any() and not batch["pair_weights"].any()


@settings(max_examples=80, derandomize=True)
@given(corpora, st.integers(8, 60), st.integers(2, 30), st.integers(0, 4))
def test_full_sentences_hold_all_text_in_order(documents: list, length: int, walk: int, epoch: int) -> None:
    split = MemorySplit(documents, all_different=True)
    edges = split.sentence_offsets + FIRST_TOKEN
    ends = edges[split.document_offsets[1:]].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentence_rows, "LONGEST_WALK", walk)
        batch = make_epoch(documents, replace(DATA, sequence_length=length, rows="full_sentences"), epoch)
    seen: list[int] = []
    for row in sorted_rows(batch):
        assert row[0] == SPECIALS.cls_id and row[-1] == SPECIALS.sep_id and len(row) <= length
        tokens = [token for token in row if token >= FIRST_TOKEN]
        assert tokens == list(range(tokens[0], tokens[-1] + 1)), "running text"
        assert tokens[0] in edges, "from the beginning of a sentence"
        inside = [row[place - 1] + 1 for place in range(2, len(row) - 1) if row[place] == SPECIALS.sep_id]
        assert inside == [end for end in ends if tokens[0] < end <= tokens[-1]], "a [SEP] after each document"
        seen += tokens
    too_long = np.maximum(np.diff(edges) - (length - 2), 0)
    assert len(seen) == len(set(seen)) == edges[-1] - FIRST_TOKEN - too_long.sum(), "only overlong sentences are cut"


@settings(max_examples=80, derandomize=True)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=40), min_size=2, max_size=8), st.integers(12, 60))
def test_documents_are_whole_or_even_parts(documents: list, length: int) -> None:
    assert_whole_or_even_parts(documents, length, longest=9)


def test_documents_of_8192_tokens_are_whole_or_even_parts() -> None:
    """Most documents have about a thousand tokens, and some have tens of thousands."""
    draw = np.random.default_rng(4)
    sentences = [*draw.geometric(1 / 40, 300), *draw.integers(300, 900, 6)]
    documents = [draw.integers(5, 60, count).tolist() for count in sentences]
    parts = assert_whole_or_even_parts(documents, 8192, longest=59)
    assert len(parts) > len(documents) + 6
    data = replace(DATA, sequence_length=8192, rows="documents", packing="pairs", pairs_per_row=128)
    packed = make_epoch(documents, data)
    assert (packed["sequence_ids"] > 0).mean() > 0.9
    packed_parts = [
        ids[numbers == number].tolist()
        for ids, numbers in zip(packed["input_ids"], packed["sequence_ids"], strict=True)
        for number in range(1, numbers.max() + 1)
    ]
    assert sorted(packed_parts) == parts


def assert_whole_or_even_parts(documents: list[list[int]], length: int, longest: int) -> list[list[int]]:
    """Check the rows of `documents`, whose sentences have at most `longest` tokens, and return them sorted."""
    split = MemorySplit(documents, all_different=True)
    edges = split.sentence_offsets + FIRST_TOKEN
    bounds = edges[split.document_offsets]
    rows = sorted_rows(make_epoch(documents, replace(DATA, sequence_length=length, rows="documents")))
    texts = [row[1:-1] for row in rows]
    assert [token for text in texts for token in text] == list(range(FIRST_TOKEN, edges[-1])), "each token once"
    starts = np.array([text[0] for text in texts])
    assert np.isin(starts, edges).all() and np.isin(bounds[:-1], starts).all()
    assert all(len(row) <= length for row in rows)
    for begin, end in itertools.pairwise(bounds):
        sizes = [len(text) for text in texts if begin <= text[0] < end]
        assert (len(sizes) == 1) == (end - begin <= length - 2), "whole if it fits"
        assert min(sizes) >= sum(sizes) / len(sizes) - len(sizes) * longest, "no part is a short remainder"
    return rows


def test_notes_on_cuts_count_documents_and_parts() -> None:
    split = MemorySplit([[5] * 3, [5] * 8, [5] * 4])
    stages = [replace(DATA, rows="documents"), replace(DATA, rows="documents", sequence_length=64), DATA]
    cut, whole = notes_on_cuts(split, stages, BERT)
    assert "1 of 3 documents" in cut and "24 tokens and are cut into 2 parts at the ends of sentences" in cut
    assert whole.endswith("0 of 3 documents of the training split do not fit into 64 tokens")


def test_full_sentences_fill_rows() -> None:
    documents = random_documents(400, seed=3, sentences=6, tokens=9)
    data = replace(DATA, sequence_length=128, rows="full_sentences")
    crossing = make_epoch(documents, data)["sequence_ids"].mean()
    within = make_epoch(documents, replace(data, rows="doc_sentences"))["sequence_ids"].mean()
    assert crossing > 0.9 > within + 0.3, "rows are full up to half a sentence"
    assert sorted_rows(make_epoch(documents, data, 0)) != sorted_rows(make_epoch(documents, data, 1)), (
        "epochs have other rows"
    )


@pytest.mark.parametrize("rows", ["full_sentences", "doc_sentences", "documents"])
@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_running_text_does_not_depend_on_host_or_history(rows: str, packing: str) -> None:
    data = DataConfig(sequence_length=48, max_predictions=8, rows=rows, packing=packing)
    split = MemorySplit(random_documents(40, seed=2, sentences=6, tokens=9))
    batches, again = (RowBatches(split, SPECIALS, data, 0) for _ in range(2))
    assert {key: (v.shape, v.dtype.type) for key, v in batches.batch(0, 8).items()} == batches.spec(8)
    for step in (0, 5, 60):
        whole, half = batches.batch(step, 8), again.batch(step, 8, slice(4, 8))
        assert all((half[key] == whole[key][4:]).all() for key in whole)


def test_mask_count_is_a_share_of_all_tokens_in_the_row() -> None:
    data = DataConfig(sequence_length=64, max_predictions=20, rows="full_sentences")
    batch = RowBatches(MemorySplit(random_documents(60, seed=2, sentences=3, tokens=5)), SPECIALS, data, 0).batch(0, 50)
    used = batch["sequence_ids"].sum(axis=1)
    assert batch["mlm_weights"].sum(axis=1).tolist() == [round(n * 0.15) for n in used.tolist()]
    labels = batch["mlm_labels"][batch["mlm_weights"] > 0]
    assert not np.isin(labels, [SPECIALS.sep_id, SPECIALS.cls_id]).any()


def test_packing_combines_rows_of_short_documents() -> None:
    documents = random_documents(120, seed=2, sentences=3, tokens=5)
    data = replace(DATA, sequence_length=96)
    alone, packed = make_epoch(documents, data), make_epoch(documents, replace(data, packing="pairs"))
    assert (packed["sequence_ids"] > 0).sum() == (alone["sequence_ids"] > 0).sum()
    assert len(packed["input_ids"]) < 0.5 * len(alone["input_ids"])
