"""Rows of a million tokens of Wikipedia match the reference implementation in distribution.

Compares pairs, padding, mask counts, replacements and whole words, at both of the paper's lengths. The rows of a
document are not independent, but passes over the corpus are, so whole passes are compared.
"""

from __future__ import annotations

import lzma
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from reference_pairs import MaskRules, PairRules, corpus_pairs, mask
from scipy import stats
from stored_documents import write_store

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.text.sentences import split_sentences
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

TOKENS = 1_050_000
PASSES = 6
SLOTS = {128: 20, 512: 77}
Batch = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def tokenizer(real_data: Path) -> WordPiece:
    return WordPiece.load(real_data / "vocab" / "bert-base-uncased" / "vocab.txt", TextRules(True, True))


def articles(real_data: Path) -> Iterator[list[str]]:
    """The sentences of each article."""
    for path in sorted((real_data / "wikipedia_en").glob("*.txt.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for article in file.read().split("</doc>")[:-1]:
                yield [s for line in article.split("\n")[2:] for s in split_sentences(line)]


@pytest.fixture(scope="module")
def split(real_data: Path, tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> SplitView:
    documents, tokens = [], 0
    for sentences in articles(real_data):
        ids = [x.tolist() for x in tokenizer.encode_sentences(sentences) if len(x)] if sentences else []
        if ids:
            documents.append(ids)
            tokens += sum(map(len, ids))
        if tokens >= TOKENS:
            break
    assert tokens >= TOKENS
    place = tmp_path_factory.mktemp("real") / "store"
    return TokenStore.open(write_store(place, {"train": documents}, tokenizer)).split("train")


def our_passes(split: SplitView, tokenizer: WordPiece, data: DataConfig) -> Iterator[Batch]:
    """All pairs of each epoch as rows."""
    batches = RowBatches(split, tokenizer, data, seed=3)
    batches._epochs.rows = 10**9  # so that an epoch is exactly its plan
    for epoch in range(PASSES):
        yield batches.rows(epoch * 10**9 + np.arange(len(batches._epochs.get(epoch))))


def their_passes(split: SplitView, tokenizer: WordPiece, data: DataConfig, rules: PairRules) -> Iterator[Batch]:
    """The same arrays from the reference implementation."""
    lengths = np.diff(split.sentence_offsets)
    sentences = np.split(split.tokens(split.sentence_offsets[:-1], lengths), np.cumsum(lengths)[:-1])
    texts = [x.tolist() for x in sentences]
    edges = split.document_offsets.tolist()
    documents = [texts[start:stop] for start, stop in pairwise(edges)]
    masks = MaskRules(
        max_predictions=data.max_predictions,
        vocab_size=tokenizer.vocab_size,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        continuation=np.asarray(tokenizer.is_continuation).tolist(),
        whole_words=data.masking == "words",
    )
    rng = random.Random(12)
    for _ in range(PASSES):
        pairs = corpus_pairs(documents, rules, rng)
        rows = [mask(pair.first, pair.second, masks, rng) for pair in pairs]
        yield {
            "input_ids": padded([row.tokens for row in rows], data.sequence_length),
            "sequence_ids": padded([[1] * len(row.tokens) for row in rows], data.sequence_length),
            "token_type_ids": padded(
                [[0] * (len(p.first) + 2) + [1] * (len(p.second) + 1) for p in pairs], data.sequence_length
            ),
            "mlm_positions": padded([row.positions for row in rows], data.max_predictions),
            "mlm_labels": padded([row.labels for row in rows], data.max_predictions),
            "mlm_weights": padded([[1] * len(row.positions) for row in rows], data.max_predictions),
            "pair_labels": np.array([[pair.is_random] for pair in pairs], np.int32),
        }


def padded(rows: list[list[int]], width: int) -> np.ndarray:
    table = np.zeros((len(rows), width), np.int32)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def totals(batch: Batch, tokenizer: WordPiece) -> np.ndarray:
    """Sums over the rows of a pass that would reveal any difference between two implementations."""
    length, slots = batch["input_ids"].shape[1], batch["mlm_positions"].shape[1]
    whole = batch["sequence_ids"].sum(axis=1)
    second = batch["token_type_ids"].sum(axis=1) - 1
    first, odd = whole - second - 3, batch["pair_labels"][:, 0] == 1
    used = batch["mlm_weights"] > 0
    positions, labels = batch["mlm_positions"], batch["mlm_labels"]
    replacements = np.take_along_axis(batch["input_ids"], positions, axis=1)
    continues = np.asarray(tokenizer.is_continuation)[labels] & used
    follows = used[:, 1:] & (np.diff(positions, axis=1) == 1)
    frequent = np.bincount(labels[used], minlength=tokenizer.vocab_size)[FREQUENT_IDS]
    bins = np.linspace(0, length + 1, 18)
    replaced = used & (replacements != tokenizer.mask_id) & (replacements != labels)
    sums = {
        "rows": len(whole),
        "random": odd.sum(),
        "padding": length * len(whole) - whole.sum(),
        "full rows": (whole == length).sum(),
        "A": first.sum(),
        "B": second.sum(),
        "A of random": first[odd].sum(),
        "A x B": (first * second).sum(),
        "masks": used.sum(),
        "[MASK]": (used & (replacements == tokenizer.mask_id)).sum(),
        "kept": (used & (replacements == labels)).sum(),
        "replaced": replaced.sum(),
        "replaced by the first half of the vocabulary": (replaced & (replacements < tokenizer.vocab_size // 2)).sum(),
        "pieces hidden": continues.sum(),
        "neighbours hidden": follows.sum(),
        "pieces hidden with the previous token": (follows & continues[:, 1:]).sum(),
    }
    shapes = [np.histogram(x, bins)[0] for x in (first, second, second[odd], whole, positions[used])]
    masks_a_row = np.bincount(used.sum(axis=1), minlength=slots + 1)
    return np.concatenate([np.array(list(sums.values())), *shapes, masks_a_row, frequent]).astype(float)


FREQUENT_IDS = np.arange(996, 1100)  # punctuation, letters and the commonest words of the published vocabulary


def smallest_pvalue(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The smallest p-value of Student's test on each common sum, with Bonferroni's correction."""
    both = np.concatenate([ours, theirs])
    compared = (both.mean(axis=0) > 10) & (both.std(axis=0) > 0)
    pvalues = stats.ttest_ind(ours[:, compared], theirs[:, compared]).pvalue
    return float(pvalues.min() * len(pvalues))


@pytest.mark.parametrize(
    ("length", "whole_words"),
    [
        pytest.param(128, False, marks=pytest.mark.long),  # test_recipe_masks.py covers made-up text
        pytest.param(512, True, marks=pytest.mark.long),
        pytest.param(128, True, marks=pytest.mark.long),
        pytest.param(512, False, marks=pytest.mark.long),
    ],
)
def test_rows_match_the_reference_in_distribution(
    split: SplitView, tokenizer: WordPiece, length: int, whole_words: bool
) -> None:
    data = DataConfig(
        sequence_length=length, max_predictions=SLOTS[length], masking="words" if whole_words else "tokens"
    )
    rules = PairRules(length)
    ours = np.array([totals(batch, tokenizer) for batch in our_passes(split, tokenizer, data)])
    theirs = np.array([totals(batch, tokenizer) for batch in their_passes(split, tokenizer, data, rules)])
    assert smallest_pvalue(ours, theirs) > 0.01


@pytest.mark.long
def test_comparison_detects_a_missing_rule(split: SplitView, tokenizer: WordPiece) -> None:
    data, rules = DataConfig(sequence_length=128, max_predictions=SLOTS[128]), PairRules(128)
    ours = np.array([totals(batch, tokenizer) for batch in our_passes(split, tokenizer, data)])
    for flawed_rules, flawed_data in (
        (replace(rules, put_back=False), data),
        (replace(rules, short_sequences=False), data),
        (rules, replace(data, masking="words")),
    ):
        passes = islice(their_passes(split, tokenizer, flawed_data, flawed_rules), 5)
        flawed = [totals(batch, tokenizer) for batch in passes]
        assert smallest_pvalue(ours, np.array(flawed)) < 1e-3


def test_packed_rows_of_512_tokens_are_nearly_full(split: SplitView, tokenizer: WordPiece) -> None:
    data = DataConfig(sequence_length=512, max_predictions=77)
    fill = []
    for packing in ("none", "pairs"):
        batches = RowBatches(split, tokenizer, replace(data, packing=packing), seed=3)
        rows = batches.rows(np.arange(batches.rows_per_epoch))
        fill.append((rows["sequence_ids"] > 0).mean())
    assert fill[0] < 0.6 and fill[1] > 0.97
