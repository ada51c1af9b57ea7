"""Numbers of masked tokens, and their replacements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import MemorySplit, Specials, random_documents
from scipy import stats

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.layout import lay_out
from bertjax.input.masking.counts import COUNTS
from bertjax.input.masking.options import REPLACED_BY
from bertjax.input.masking.rule import MaskRule, mask_tokens
from bertjax.input.randomness import hash64
from bertjax.training.flops import expected_predictions

SPECIALS = Specials()
MANY = 20_000
SPLIT = MemorySplit(random_documents(60, seed=2, sentences=4, tokens=9))


def draw_counts(name: str, tokens: int, share: float, special: int = 3) -> np.ndarray:
    """Draw the number of masked tokens for many sequences of the same length."""
    every = np.full(MANY, tokens)
    return COUNTS[name].draw(every, every - special, hash64(tokens, np.arange(MANY)), share)


@pytest.mark.parametrize(
    ("tokens", "share"), [(6, 0.15), (20, 0.15), (100, 0.15), (128, 0.15), (509, 0.2), (512, 0.15)]
)
def test_random_round_has_the_exact_expected_share(tokens: int, share: float) -> None:
    """RoBERTa: int(0.15 L + u), so the mean is 0.15 L and every count is less than 1 away from it."""
    counts = draw_counts("random_round", tokens, share)
    below, above = int(tokens * share), int(np.ceil(tokens * share - 1e-9))
    assert set(counts.tolist()) <= {below, above}
    part = tokens * share - below
    expected = np.array([1 - part, part]) * MANY if above > below else None
    if expected is None:
        assert (counts == below).all()
    else:
        assert stats.chisquare([(counts == below).sum(), (counts == above).sum()], expected).pvalue > 0.01


@pytest.mark.parametrize(("tokens", "share"), [(8, 0.15), (64, 0.3), (128, 0.15), (128, 0.4), (1024, 0.3)])
def test_each_is_binomial(tokens: int, share: float) -> None:
    """ModernBERT: every token that may be masked is drawn independently."""
    counts = draw_counts("each", tokens, share)
    expected = stats.binom.pmf(np.arange(tokens + 1), tokens - 3, share) * MANY
    common = expected > 5
    seen = np.bincount(counts, minlength=tokens + 1)
    assert seen[~common].sum() < 60
    assert stats.chisquare(seen[common], expected[common] * seen[common].sum() / expected[common].sum()).pvalue > 0.01


def test_each_masks_tokens_independently() -> None:
    data = DataConfig(sequence_length=64, max_predictions=45, mask_count="each", mask_probability=0.3)
    text = np.random.default_rng(0).integers(5, SPECIALS.vocab_size, 61)
    encoder, places = lay_out(np.tile(text, MANY), np.tile([30, 31], (MANY, 1)), 64, SPECIALS)
    rule = MaskRule.of(data, SPECIALS, SPLIT)
    _, masks = mask_tokens(encoder["input_ids"], places, hash64(1, np.arange(MANY)), rule)
    is_hidden = np.zeros((MANY, 64), bool)
    np.put_along_axis(is_hidden, masks["mlm_positions"], masks["mlm_weights"] > 0, axis=1)
    shares = is_hidden[:, places[0]].mean(axis=0)
    assert np.abs(shares - 0.3).max() < 4.5 * np.sqrt(0.21 / MANY)
    correlations = np.corrcoef(is_hidden[:, places[0]].T)[np.triu_indices(61, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(MANY) and abs(correlations.mean()) < 5e-4


@settings(max_examples=120, derandomize=True, deadline=None)
@given(
    name=st.sampled_from(sorted(COUNTS)),
    masking=st.sampled_from(["tokens", "words", "spans"]),
    length=st.integers(8, 90),
    share=st.sampled_from([0.01, 0.07, 0.15, 0.3, 0.5]),
    packing=st.sampled_from(["none", "pairs"]),
    most=st.integers(1, 9),
    predictions=st.integers(1, 60),
    special=st.booleans(),
    seed=st.integers(0, 2**40),
)
def test_every_masked_token_has_a_prediction(
    name: str,
    masking: str,
    length: int,
    share: float,
    packing: str,
    most: int,
    predictions: int,
    special: bool,
    seed: int,
) -> None:
    """For every unit and count, packed or not."""
    data = DataConfig(
        sequence_length=length,
        mask_probability=share,
        max_predictions=max(predictions, COUNTS[name].least_limit(length, share)),
        packing=packing,
        pairs_per_row=most,
        short_sequence_probability=0.5,
        masking=masking,
        mask_count=name,
        mask_special=special,
        keep_share=0,
        random_share=0,
    )
    batches = RowBatches(SPLIT, SPECIALS, data, seed)
    batch = batches.batch(0, 30)
    shapes = {key: (values.shape, values.dtype.type) for key, values in batch.items()}
    assert shapes == batches.spec(30)
    used = batch["mlm_weights"] > 0
    assert np.count_nonzero(used) == np.count_nonzero(batch["input_ids"] == SPECIALS.mask_id)
    replacements = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], axis=1)
    assert (replacements[used] == SPECIALS.mask_id).all()
    assert expected_predictions(data) <= used.shape[1]


@pytest.mark.parametrize("name", [name for name, count in COUNTS.items() if not count.may_be_full])
def test_most_bounds_the_count_of_packed_rows(name: str) -> None:
    """For sequences of any lengths, all with their largest draws."""
    count, rng = COUNTS[name], np.random.default_rng(3)
    for _ in range(300):
        sequences, share = int(rng.integers(1, 12)), float(rng.choice([0.01, 0.1, 0.15, 0.3, 0.7]))
        shortest = int(rng.choice([3, 5]))
        lengths = rng.integers(shortest, int(rng.choice([shortest + 3, 120])), sequences)
        worst = np.zeros(sequences, np.int64)
        for stream in range(40):
            keys = hash64(stream, np.arange(sequences))
            worst = np.maximum(worst, count.draw(lengths, lengths - 2, keys, share))
        assert worst.sum() <= count.most(int(lengths.sum()), sequences, share, shortest)


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3, 0.4])
def test_most_suffices_for_independent_draws(share: float) -> None:
    for tokens in (64, 128, 512, 1_024, 8_192):
        slots = COUNTS["each"].most(tokens, 32, share, 5)
        assert stats.binom.sf(slots, tokens, share) < 1e-6
        assert slots <= share * tokens + 6 * np.sqrt(share * (1 - share) * tokens) + 1


@pytest.mark.parametrize("name", ["random_round", "each"])
def test_least_limit_never_cuts_a_count(name: str) -> None:
    for tokens, share in ((8, 0.15), (64, 0.3), (128, 0.15), (512, 0.15)):
        assert draw_counts(name, tokens, share, special=0).max() <= COUNTS[name].least_limit(tokens, share)


def rows_of_nines(copies: int, slots: int = 19, **options: object) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Mask rows of 128 tokens that are equal except for [CLS] and [SEP]."""
    data = DataConfig(max_predictions=slots, **options)
    encoder, places = lay_out(np.full(125 * copies, 9), np.tile([60, 65], (copies, 1)), 128, SPECIALS)
    rule = MaskRule.of(data, SPECIALS, SPLIT)
    masked, masks = mask_tokens(encoder["input_ids"], places, hash64(2, np.arange(copies)), rule)
    return np.take_along_axis(masked, masks["mlm_positions"], axis=1), masks


def test_ordinary_random_tokens_exclude_special_tokens() -> None:
    replacements, _ = rows_of_nines(4_000, keep_share=0, random_share=1, random_ids="ordinary")
    seen = np.bincount(replacements.ravel(), minlength=SPECIALS.vocab_size)
    special = sorted(SPECIALS.special.values())
    assert not seen[special].any()
    assert stats.chisquare(np.delete(seen, special)).pvalue > 0.01


def test_corpus_random_tokens_follow_corpus_frequencies() -> None:
    replacements, _ = rows_of_nines(4_000, keep_share=0, random_share=1, random_ids="corpus")
    seen = np.bincount(replacements.ravel(), minlength=SPECIALS.vocab_size)
    counts = np.bincount(SPLIT.flat, minlength=SPECIALS.vocab_size)
    assert not seen[counts == 0].any() and counts.max() > 4 * counts[counts > 0].min()
    expected = counts / counts.sum() * seen.sum()
    assert stats.chisquare(seen[counts > 0], expected[counts > 0]).pvalue > 0.01


def test_first_of_run_by_hand() -> None:
    positions = np.array([[1, 2, 3, 7, 9, 10, 0, 0], [4, 6, 8, 9, 10, 11, 12, 20]])
    assert REPLACED_BY["span"](positions).tolist() == [[1, 1, 1, 7, 9, 9, 0, 0], [4, 6, 8, 8, 8, 8, 8, 20]]
    assert REPLACED_BY["token"](positions) is positions


def test_span_gets_one_kind_of_replacement() -> None:
    """Adjacent spans are one: all of it is [MASK], random or kept, at 80, 10 and 10 %; random tokens differ."""
    replacements, masks = rows_of_nines(6_000, masking="spans", replace_by="span", random_ids="ordinary")
    kinds: list[int] = []
    different = 0
    for positions, weights, row in zip(masks["mlm_positions"], masks["mlm_weights"], replacements, strict=True):
        used = positions[weights > 0]
        begins = np.flatnonzero(np.diff(used, prepend=-2) != 1)
        for span in np.split(row[: len(used)], begins[1:]):
            kind = np.where(span == SPECIALS.mask_id, 0, np.where(span == 9, 1, 2))
            if 2 in kind:  # a random token may be the original
                assert 0 not in kind
                different += len(set(span.tolist())) > 1
            else:
                assert len(set(kind.tolist())) == 1
            kinds.append(int(kind.max()))
    counts = np.bincount(kinds, minlength=3)
    assert stats.chisquare(counts, np.array([0.8, 0.1, 0.1]) * counts.sum()).pvalue > 0.01
    assert different > 0.4 * counts[2]


@pytest.mark.parametrize("options", [{"masking": "tokens"}, {"masking": "words"}, {"masking": "spans"}], ids=str)
def test_special_tokens_are_masked_if_requested(options: dict) -> None:
    plain = DataConfig(sequence_length=64, max_predictions=40, mask_probability=0.5, **options)
    labels = {}
    for data in (plain, replace(plain, mask_special=True)):
        batch = RowBatches(SPLIT, SPECIALS, data, 0).batch(0, 200)
        used = batch["mlm_weights"] > 0
        labels[data.mask_special] = np.isin(batch["mlm_labels"][used], [SPECIALS.cls_id, SPECIALS.sep_id]).mean()
        at_first = used & (batch["mlm_positions"] == 0)
        assert (batch["mlm_labels"][at_first] == SPECIALS.cls_id).all()
    assert labels[False] == 0 < 0.02 < labels[True] < 0.2
