"""Masks and truncation against the rules, and against a reference implementation in distribution."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials
from reference_pairs import Masked, MaskRules, mask
from scipy import stats

from bertjax.config import DataConfig
from bertjax.input.layout import lay_out, truncate
from bertjax.input.masking.rule import MaskRule, mask_tokens
from bertjax.input.masking.units import Unit
from bertjax.input.randomness import hash64
from bertjax.input.targets.mlm import next_tokens

SPECIALS = Specials()
MANY = 20_000


def keys(count: int, stream: int = 0) -> np.ndarray:
    return hash64(stream, np.arange(count))


def same_text(length: int, total: int, first: int, copies: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """`copies` rows with the same text of `total` tokens, including special tokens.

    Returns input ids, candidates, and the concatenated A and B.
    """
    text = np.random.default_rng(length).integers(5, SPECIALS.vocab_size, total - 3)
    lengths = np.tile([first, total - 3 - first], (copies, 1))
    encoder, candidates = lay_out(np.tile(text, copies), lengths, length, SPECIALS)
    return encoder["input_ids"], candidates, text.tolist()


def rule(slots: int, whole_words: bool = False, probability: float = 0.15) -> MaskRule:
    data = DataConfig(masking="words" if whole_words else "tokens", max_predictions=slots, mask_probability=probability)
    return MaskRule.of(data, SPECIALS, MemorySplit([[5]]))


class Chosen(Unit):
    """Returns the columns that a test gives."""

    needs_words = False

    def __init__(self, columns: np.ndarray) -> None:
        self.columns = columns

    def choose(self, candidates, continues, counts, keys, slots):
        return self.columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([[3, 5]], None),
        ([[5, 3]], "must return ascending columns of candidates"),
        ([[0, 3]], "must return ascending columns of candidates"),  # [CLS]
        ([[3, 3]], "must return ascending columns of candidates"),
        ([[3, 5, 6]], r"`choose` returned int64 \[1, 3\], not int64 \[1, 2\]"),
    ],
)
def test_choice_of_a_unit_is_checked(columns: list, message: str | None) -> None:
    ids, candidates, _ = same_text(16, 16, 6, 1)
    chosen = replace(rule(2), unit=Chosen(np.array(columns, np.int64)))
    if message is None:
        assert mask_tokens(ids, candidates, keys(1), chosen)[1]["mlm_positions"].tolist() == columns
    else:
        with pytest.raises(ValueError, match=f"masking unit Chosen: .*{message}"):
            mask_tokens(ids, candidates, keys(1), chosen)


def reference_whole_words(text: list[int], first: int, slots: int, passes: int) -> list[Masked]:
    rules = MaskRules(
        max_predictions=slots,
        vocab_size=SPECIALS.vocab_size,
        cls_id=SPECIALS.cls_id,
        sep_id=SPECIALS.sep_id,
        mask_id=SPECIALS.mask_id,
        continuation=SPECIALS.is_continuation.tolist(),
        whole_words=True,
    )
    rng = random.Random(4)
    return [mask(text[:first], text[first:], rules, rng) for _ in range(passes)]


@pytest.mark.parametrize("slots", [1, 20, 600])
def test_number_of_masks(slots: int) -> None:
    """The reference's rule at every length, ties rounded to even (length 10: 1.5 -> 2, length 30: 4.5 -> 4)."""
    totals = np.arange(5, 513)
    lengths = np.stack([np.ones_like(totals), totals - 4], axis=1)
    encoder, candidates = lay_out(np.full(lengths.sum(), 9), lengths, 512, SPECIALS)
    _, masks = mask_tokens(encoder["input_ids"], candidates, keys(len(totals)), rule(slots))
    expected = [min(slots, max(1, round(n * 0.15))) for n in totals.tolist()]
    assert masks["mlm_weights"].sum(axis=1).tolist() == expected


@pytest.mark.parametrize("probability", [0.0, 0.9, 0.99])
def test_masks_do_not_exceed_candidates(probability: float) -> None:
    input_ids, candidates, _ = same_text(16, 7, 2, 5)
    _, masks = mask_tokens(input_ids, candidates, keys(5), rule(20, probability=probability))
    expected = 1 if probability == 0 else 4
    assert masks["mlm_weights"].sum(axis=1).tolist() == [expected] * 5


def test_shares_of_mask_keep_and_random() -> None:
    input_ids, candidates, _ = same_text(128, 128, 60, MANY)
    masked, masks = mask_tokens(input_ids, candidates, keys(MANY), rule(20))
    replacements = np.take_along_axis(masked, masks["mlm_positions"], axis=1)[:, :19]
    labels = masks["mlm_labels"][:, :19]
    is_mask, is_kept = replacements == SPECIALS.mask_id, replacements == labels
    n = replacements.size
    random_hits = 0.1 / SPECIALS.vocab_size  # a random token may be [MASK] or the token itself
    expected = np.array([0.8 + random_hits, 0.1 + random_hits, 0.1 - 2 * random_hits]) * n
    observed = [is_mask.sum(), is_kept.sum(), n - is_mask.sum() - is_kept.sum()]
    assert stats.chisquare(observed, expected).pvalue > 0.01
    replaced = replacements[~is_mask & ~is_kept]
    counts = np.bincount(replaced, minlength=SPECIALS.vocab_size)
    assert len(counts) == SPECIALS.vocab_size and counts[0] > 0 and counts[-1] > 0
    others = np.setdiff1d(np.arange(SPECIALS.vocab_size), [SPECIALS.mask_id, *np.unique(labels)])
    assert stats.chisquare(counts[others]).pvalue > 0.01


@pytest.mark.parametrize(("keep", "random"), [(0.0, 0.0), (0.0, 0.2), (0.2, 0.0), (0.2, 0.8), (0.0, 1.0)])
def test_configured_replacement_shares_are_exact(keep: float, random: float) -> None:
    input_ids, candidates, _ = same_text(128, 128, 60, MANY)
    plain = rule(20)
    changed = replace(plain, replacement=replace(plain.replacement, keep_share=keep, random_share=random))
    masked, masks = mask_tokens(input_ids, candidates, keys(MANY), changed)
    replacements = np.take_along_axis(masked, masks["mlm_positions"], axis=1)[:, :19]
    is_mask, is_kept = replacements == SPECIALS.mask_id, replacements == masks["mlm_labels"][:, :19]
    hits = random / SPECIALS.vocab_size  # a random token may be [MASK] or the token itself
    expected = np.array([1 - keep - random + hits, keep + hits, random - 2 * hits]) * replacements.size
    observed = np.array([is_mask.sum(), is_kept.sum(), replacements.size - is_mask.sum() - is_kept.sum()])
    possible = expected > 0
    assert (observed[~possible] == 0).all()
    assert stats.chisquare(observed[possible], expected[possible]).pvalue > 0.01 or possible.sum() == 1


@pytest.mark.parametrize("total", [20, 77, 128])
def test_candidates_are_masked_with_equal_probability(total: int) -> None:
    input_ids, candidates, _ = same_text(128, total, total // 3, MANY)
    _, masks = mask_tokens(input_ids, candidates, keys(MANY), rule(20))
    positions = masks["mlm_positions"][masks["mlm_weights"] > 0]
    hits = np.bincount(positions, minlength=128)
    inside = candidates[0]
    assert (hits[~inside] == 0).all()
    # Drawn without replacement: a position's hits are binomial, with a little less spread over positions.
    assert stats.chisquare(hits[inside]).pvalue > 0.001
    pairs = Counter(zip(positions[:-1].tolist(), positions[1:].tolist(), strict=True))
    assert len(pairs) > total  # all combinations turn up, not windows


@pytest.mark.parametrize(("total", "slots"), [(40, 20), (64, 4), (128, 20)])
def test_whole_words_match_the_reference_in_distribution(total: int, slots: int) -> None:
    """Compares the number of masked tokens and each token's frequency. Words that do not fit are skipped."""
    first, passes = total // 3, 4000
    input_ids, candidates, text = same_text(128, total, first, passes)
    _, masks = mask_tokens(input_ids, candidates, keys(passes), rule(slots, whole_words=True))
    theirs = reference_whole_words(text, first, slots, passes)
    our_counts = np.bincount(masks["mlm_weights"].sum(axis=1).astype(int), minlength=slots + 1)
    their_counts = np.bincount([len(i.positions) for i in theirs], minlength=slots + 1)
    seen = our_counts + their_counts > 10
    if seen.sum() > 1:
        assert stats.chi2_contingency([our_counts[seen], their_counts[seen]]).pvalue > 0.01
    else:
        assert our_counts[seen] == their_counts[seen]
    ours = np.bincount(masks["mlm_positions"][masks["mlm_weights"] > 0], minlength=128)[candidates[0]]
    others = np.bincount(np.concatenate([i.positions for i in theirs]), minlength=128)[candidates[0]]
    # tokens of a word are masked together, so compare each token separately, not as one table
    spread = np.sqrt(ours * (1 - ours / passes) + others * (1 - others / passes))
    assert (np.abs(ours - others) / np.maximum(spread, 1)).max() < 4


def test_whole_words_are_masked_completely() -> None:
    input_ids, candidates, text = same_text(128, 120, 50, 500)
    _, masks = mask_tokens(input_ids, candidates, keys(500), rule(20, whole_words=True))
    places = np.flatnonzero(candidates[0])
    words: list[set[int]] = []
    for place, token in zip(places.tolist(), text, strict=True):
        if words and SPECIALS.is_continuation[token]:
            words[-1].add(place)
        else:
            words.append({place})
    assert max(map(len, words)) > 2
    for positions, weights in zip(masks["mlm_positions"], masks["mlm_weights"], strict=True):
        chosen = set(positions[weights > 0].tolist())
        assert chosen == set().union(*(word for word in words if word & chosen))
        assert len(chosen) == weights.sum() <= 18


def test_word_longer_than_the_mask_budget_is_skipped() -> None:
    continued = int(np.flatnonzero(SPECIALS.is_continuation)[0])
    text = np.array([7, 7, 7, 7] + [continued] * 12 + [8, 8, 8])  # a word of 13 tokens; budget round(22 * 0.15) = 3
    encoder, candidates = lay_out(np.tile(text, 300), np.tile([4, 15], (300, 1)), 32, SPECIALS)
    _, masks = mask_tokens(encoder["input_ids"], candidates, keys(300), rule(20, whole_words=True))
    assert (masks["mlm_weights"].sum(axis=1) == 3).all()
    assert set(masks["mlm_labels"].ravel().tolist()) == {0, 7, 8}
    # the word starts with A's last token and continues with B's first ones across [SEP], as in the reference
    assert set(masks["mlm_positions"].ravel().tolist()) == {0, 1, 2, 3, 18, 19, 20}


def test_next_tokens_skip_the_last_of_each_sequence() -> None:
    sequence_ids = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2]], np.int32)
    input_ids = np.arange(18, dtype=np.int32).reshape(3, 6) + 5
    arrays = next_tokens(input_ids, sequence_ids)
    assert [(a.shape, a.dtype) for a in arrays.values()] == [((3, 5), t) for t in (np.int32, np.int32, np.float32)]
    for row in range(3):
        used = arrays["mlm_weights"][row] > 0
        pairs = list(zip(arrays["mlm_positions"][row][used], arrays["mlm_labels"][row][used], strict=True))
        assert pairs == [
            (place, input_ids[row, place + 1])
            for place in range(5)
            if sequence_ids[row, place] and sequence_ids[row, place] == sequence_ids[row, place + 1]
        ]


@pytest.mark.parametrize("room", [2, 5, 8, 61])
def test_truncated_lengths(room: int) -> None:
    """The closed form is equivalent to dropping tokens one by one, for all lengths."""
    lengths = np.array([(a, b) for a in range(1, 71) for b in range(1, 71)])
    starts = np.arange(lengths.size).reshape(lengths.shape) * 1000
    begins, sizes = truncate(starts, lengths, room, keys(len(lengths)))
    for (a, b), after in zip(lengths.tolist(), sizes.tolist(), strict=True):
        while a + b > room:
            a, b = (a - 1, b) if a > b else (a, b - 1)
        assert [a, b] == after
    assert (begins >= starts).all() and (begins + sizes <= starts + lengths).all()


@pytest.mark.parametrize("dropped", [1, 5, 63, 64, 65, 200])
def test_truncation_cuts_front_and_back_by_fair_coins(dropped: int) -> None:
    lengths = np.tile([30 + dropped, 10], (MANY, 1))
    begins, _ = truncate(np.zeros_like(lengths), lengths, 40, keys(MANY, dropped))
    assert (begins[:, 1] == 0).all()
    seen = np.bincount(begins[:, 0], minlength=dropped + 1)
    expected = stats.binom.pmf(np.arange(dropped + 1), dropped, 0.5) * MANY
    common = expected > 5
    scale = seen[common].sum() / expected[common].sum()
    assert stats.chisquare(seen[common], expected[common] * scale).pvalue > 0.01
    assert seen[~common].sum() < 60


def test_truncation_cuts_segments_independently() -> None:
    lengths = np.tile([60, 60], (MANY, 1))
    begins, sizes = truncate(np.zeros_like(lengths), lengths, 61, keys(MANY))
    assert (sizes == [31, 30]).all()
    assert abs(np.corrcoef(begins.T)[0, 1]) < 4 / np.sqrt(MANY)
    assert len(set(keys(MANY).tolist())) == MANY


def test_truncation_cuts_a_giant_sentence() -> None:
    begins, sizes = truncate(np.array([[0, 0]]), np.array([[3_000_000, 4]]), 125, keys(1))
    assert sizes.tolist() == [[121, 4]]
    assert abs(begins[0, 0] - 1_500_000) < 5 * np.sqrt(3_000_000 / 4)
