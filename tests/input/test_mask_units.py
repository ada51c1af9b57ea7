"""Masking units: n-grams, spans and words against reference implementations, and properties of every unit."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import reference_masks
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.layout import lay_out
from bertjax.input.made_up_text import made_up_batches
from bertjax.input.masking.rule import MaskRule, mask_tokens
from bertjax.input.masking.units import UNITS
from bertjax.input.randomness import hash64

SPECIALS = Specials()
MANY = 12_000
SPLIT = MemorySplit(random_documents(60, seed=2, sentences=4, tokens=9))
ALBERT, MACBERT = (6 / 11, 3 / 11, 2 / 11), (0.4, 0.3, 0.2, 0.1)
KINDS = {
    "tokens": {"masking": "tokens"},
    "words": {"masking": "words"},
    "albert": {"masking": "ngrams", "ngram_shares": ALBERT},
    "macbert": {"masking": "ngrams", "ngram_shares": MACBERT},
    "spans": {"masking": "spans"},
    "long spans": {"masking": "spans", "span_p": 0.05, "span_max": 30},
}


class SplitWithUnits(MemorySplit):
    """A split with units of four tokens."""

    def has_plane(self, plane: str) -> bool:
        return plane == "continues"

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str) -> np.ndarray:
        shift = starts - (np.cumsum(lengths) - lengths)
        return (np.arange(lengths.sum()) + np.repeat(shift, lengths)) % 4 != 0


def rows(total: int, copies: int, length: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """`copies` rows with the same text of `total` tokens, including special tokens, and the text's positions."""
    text = np.random.default_rng(total).integers(5, SPECIALS.vocab_size, total - 3)
    first = total // 3
    encoder, places = lay_out(np.tile(text, copies), np.tile([first, total - 3 - first], (copies, 1)), length, SPECIALS)
    return encoder["input_ids"], places


def hidden(data: DataConfig, total: int, copies: int, stream: int = 0) -> list[list[int]]:
    """The positions that are masked in each copy of a text."""
    ids, places = rows(total, copies, data.sequence_length)
    rule = MaskRule.of(data, SPECIALS, SPLIT)
    _, masks = mask_tokens(ids, places, hash64(stream, np.arange(copies)), rule)
    used = masks["mlm_weights"] > 0
    return [line[is_used].tolist() for line, is_used in zip(masks["mlm_positions"], used, strict=True)]


def words_in(total: int) -> reference_masks.Words:
    ids, places = rows(total, 1)
    where = np.flatnonzero(places[0])
    return reference_masks.split_words(where.tolist(), SPECIALS.is_continuation[ids[0, where]].tolist())


def assert_alike(ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Compare how often both mask each number of tokens, position, pair of neighbours and run length."""
    features = (
        lambda row: [len(row)],
        lambda row: row,
        lambda row: [p for p in row if p + 1 in row],
        lambda row: [min(n, 30) for n in reference_masks.runs(row)],
    )
    for feature in features:
        one, other = (np.array([np.bincount(feature(row), minlength=128) for row in side]) for side in (ours, theirs))
        spread = np.sqrt(one.var(axis=0) / len(one) + other.var(axis=0) / len(other))
        assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) < np.maximum(4.5 * spread, 6 / MANY)).all()


@pytest.mark.parametrize(
    "shares",
    # test_similar_words.py covers MacBERT's shares.
    [ALBERT, (0.2, 0.0, 0.8), *(pytest.param(shares, marks=pytest.mark.long) for shares in (MACBERT, (1.0,)))],
    ids=str,
)
@pytest.mark.parametrize(
    ("total", "slots"),
    [(128, 20), *(pytest.param(*cell, marks=pytest.mark.long) for cell in ((40, 20), (90, 5)))],
)
def test_ngrams_match_the_reference_in_distribution(shares: tuple[float, ...], total: int, slots: int) -> None:
    data = DataConfig(masking="ngrams", ngram_shares=shares, max_predictions=slots)
    budget = min(slots, max(1, round(total * 0.15)))
    rng, words = random.Random(3), words_in(total)
    theirs = [reference_masks.ngrams(words, shares, budget, rng) for _ in range(MANY)]
    assert_alike(hidden(data, total, MANY), theirs)


@pytest.mark.parametrize(
    ("p", "longest"), [(0.2, 10), *(pytest.param(*cell, marks=pytest.mark.long) for cell in ((0.5, 3), (0.05, 30)))]
)
@pytest.mark.parametrize(
    ("total", "share"),
    [(128, 0.15), *(pytest.param(*cell, marks=pytest.mark.long) for cell in ((50, 0.15), (60, 0.9)))],
)
def test_spans_match_the_reference_in_distribution(p: float, longest: int, total: int, share: float) -> None:
    data = DataConfig(masking="spans", span_p=p, span_max=longest, max_predictions=60, mask_probability=share)
    budget = min(60, total - 3, max(1, round(total * share)))
    rng, words = random.Random(3), words_in(total)
    theirs = [reference_masks.spans(words, p, longest, budget, rng) for _ in range(MANY)]
    assert_alike(hidden(data, total, MANY), theirs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"masking": "ngrams", "ngram_shares": MACBERT}, np.array(MACBERT)),
        ({"masking": "ngrams", "ngram_shares": ALBERT}, np.array(ALBERT)),
        ({"masking": "spans"}, 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)),
    ],
    ids=["macbert", "albert", "spanbert"],
)
def test_unit_lengths_have_the_published_shares(options: dict, expected: np.ndarray) -> None:
    """In very long rows of one-token words, units hardly touch, so they are the runs of masked words."""
    rows_, length, budget = 80, 50_000, 400
    places = np.ones((rows_, length), bool)
    unit = UNITS[options["masking"]].make(DataConfig(**options))
    nothing = np.zeros(places.size, bool)
    positions = unit.choose(places, nothing, np.full(rows_, budget), hash64(9, np.arange(rows_)), budget)
    lengths = np.array([n for row in positions.tolist() for n in reference_masks.runs(row)])
    counts = np.bincount(lengths, minlength=len(expected) + 1)[1 : len(expected) + 1]
    assert counts.sum() > 0.99 * len(lengths) > 8_000
    assert np.abs(counts / counts.sum() - expected).max() < 0.015
    assert abs(lengths.mean() - (expected * np.arange(1, len(expected) + 1)).sum()) < 0.05


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    length=st.integers(8, 90),
    share=st.sampled_from([0.01, 0.15, 0.4, 0.95]),
    slots=st.integers(1, 80),
    count=st.sampled_from(["round", "random_round"]),
    special=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_masks_of_every_unit_are_well_formed(
    name: str, length: int, share: float, slots: int, count: str, special: bool, seed: int
) -> None:
    if count == "random_round":
        slots = max(slots, int(np.ceil(length * share)))
    data = DataConfig(
        sequence_length=length,
        mask_probability=share,
        max_predictions=slots,
        mask_count=count,
        mask_special=special,
        keep_share=0,
        random_share=0,
        **KINDS[name],
    )
    batch = RowBatches(SPLIT, SPECIALS, data, seed).batch(0, 20)
    used, positions = batch["mlm_weights"] > 0, batch["mlm_positions"]
    assert (np.diff(used.astype(int), axis=1) <= 0).all(), "used slots first"
    assert (np.diff(positions, axis=1)[used[:, 1:]] > 0).all()
    assert (positions[~used] == 0).all() and (batch["mlm_labels"][~used] == 0).all()
    replacements = np.take_along_axis(batch["input_ids"], positions, axis=1)
    assert (replacements[used] == SPECIALS.mask_id).all()
    special_ids = [SPECIALS.cls_id, SPECIALS.sep_id]
    if not special:
        assert not np.isin(batch["mlm_labels"][used], special_ids).any()
        assert np.isin(batch["input_ids"], special_ids).sum() == 3 * 20
    for line, is_used in zip(batch["sequence_ids"], used, strict=True):
        n = int(line.sum())
        available = n if special else n - 3
        exact = {
            "round": (max(1, round(n * share)),) * 2,
            "random_round": (int(n * share), int(np.ceil(n * share))),
        }[count]
        least, most = (min(slots, available, count) for count in exact)
        masked = np.count_nonzero(is_used)
        assert masked <= most
        if name in ("tokens", "spans", "long spans"):
            assert masked >= least, "these units can use the whole budget"


def test_units_masking_uses_the_units_of_the_store() -> None:
    split = SplitWithUnits(random_documents(40, seed=1, sentences=4, tokens=30), all_different=True)
    data = DataConfig(masking="units", sequence_length=64, max_predictions=12)
    specials = replace(SPECIALS, vocab_size=10**6)
    batch = RowBatches(split, specials, data, 0).batch(0, 64)
    used = batch["mlm_weights"] > 0
    inside = 0
    for line, is_used in zip(batch["mlm_labels"], used, strict=True):
        labels = set((line[is_used] - 5).tolist())
        units = Counter(label // 4 for label in labels)
        inside += sum(n == 4 for n in units.values())
    assert inside > 64, "most units are whole, except at a segment's edges"
    with pytest.raises(ValueError, match=r"data\.masking='units': the token store marks no units of this kind"):
        RowBatches(SPLIT, SPECIALS, data, 0)


@pytest.mark.parametrize("name", KINDS)
def test_masks_do_not_depend_on_the_batch(name: str) -> None:
    data = DataConfig(sequence_length=64, max_predictions=10, **KINDS[name])
    ids, places = rows(50, 30, 64)
    keys, rule = hash64(0, np.arange(30)), MaskRule.of(data, SPECIALS, SPLIT)
    order = np.random.default_rng(0).permutation(30)[:11]
    masked, masks = mask_tokens(ids, places, keys, rule)
    some, some_masks = mask_tokens(ids[order], places[order], keys[order], rule)
    assert (some == masked[order]).all()
    assert all((some_masks[key] == masks[key][order]).all() for key in masks)
    assert len(np.unique(masks["mlm_positions"], axis=0)) > 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masking": "word"}, r"data\.masking='word' is unknown; choose from tokens, words, ngrams, spans, units"),
        ({"mask_count": "all"}, r"data\.mask_count='all' is unknown; choose from round, random_round, each"),
        ({"replace_by": "similar"}, r"data\.replace_by='similar' is unknown; choose from token, span"),
        ({"random_ids": "?"}, r"data\.random_ids='\?' is unknown; choose from vocabulary, ordinary, corpus"),
        ({"masking": "ngrams"}, r"data\.ngram_shares=\(\) with data\.masking='ngrams': give the shares"),
        ({"masking": "ngrams", "ngram_shares": (0.5, 0.4)}, r"their sum must be 1"),
        ({"masking": "ngrams", "ngram_shares": (0.0, 1.0)}, r"the first must be positive"),
        ({"ngram_shares": (1.0,)}, r"data\.ngram_shares=\(1\.0,\) with data\.masking='tokens' has no effect; leave"),
        ({"masking": "words", "span_max": 3}, r"data\.span_max=3 with .* has no effect; .* set data\.masking='spans'"),
        ({"masking": "words", "predict": "next"}, r"data\.masking='words' with data\.predict='next' has no effect"),
        ({"mask_count": "each"}, r"data\.max_predictions=20 with data\.mask_count='each': .* may need 36; raise it"),
        ({"mask_count": "random_round", "sequence_length": 512}, r"data\.max_predictions=20 .* may need 77; raise it"),
    ],
)
def test_invalid_masking_options_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowBatches(SPLIT, SPECIALS, DataConfig(**changes), 0)


def test_made_up_text_supports_masking_of_units() -> None:
    """Benchmarks of any masking run without a store."""
    data = DataConfig(masking="units", segmenter="jieba", sequence_length=64)
    batch = made_up_batches(data, 0, 2_000).batch(0, 8)
    assert np.count_nonzero(batch["mlm_weights"]) > 30
