"""Masking of rare tokens matches the exact probabilities of weighted draws without replacement."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.masking.options import check_masking
from bertjax.input.masking.rule import MaskRule, draw_by_weight, token_weights
from bertjax.input.randomness import derive_key, hash64

DATA = DataConfig(sequence_length=48, max_predictions=8, mask_power=0.7, rows="doc_sentences")
SPLIT = MemorySplit(random_documents(40, seed=5), vocab_size=60)
VOCABULARY = Specials(vocab_size=80)


def sets_by_probability(weights: np.ndarray, count: int) -> dict[tuple[int, ...], float]:
    """The probability of each set under successive draws, each proportional to the remaining weights."""
    probabilities: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(len(weights)), count):
        left, probability = weights.sum(), 1.0
        for item in order:
            probability *= weights[item] / left
            left -= weights[item]
        probabilities[tuple(sorted(order))] += probability
    return dict(probabilities)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_draw_by_weight_equals_successive_draws(count: int) -> None:
    rows, weights = 200_000, np.array([1.0, 0.2, 3.0, 0.05, 1.0, 9.0])  # the last is not a candidate
    candidates = np.tile(np.arange(6) < 5, (rows, 1))
    keys = hash64(derive_key("rare"), np.arange(rows))
    drawn = draw_by_weight(candidates, np.tile(weights, (rows, 1)), np.full(rows, count), keys, slots=4)
    assert (drawn[:, count:] == 6).all() and (np.diff(drawn[:, :count], axis=1) > 0).all()
    seen = Counter(map(tuple, drawn[:, :count].tolist()))
    expected = sets_by_probability(weights[:5], count)
    assert seen.keys() <= expected.keys()
    for members, probability in expected.items():
        deviation = np.sqrt(rows * probability * (1 - probability))
        assert abs(seen[members] - rows * probability) < 5 * deviation + 1, members


def test_token_weights_follow_the_counts() -> None:
    counts = Counter(SPLIT.flat.tolist())
    weights = token_weights(SPLIT, 80, 0.7)
    np.testing.assert_allclose(weights, [max(counts[token], 1) ** -0.7 for token in range(80)], rtol=1e-12)
    assert MaskRule.of(replace(DATA, mask_power=0.0), VOCABULARY, SPLIT).weights is None


def test_weighted_masks_do_not_depend_on_batch_or_packing() -> None:
    def sequences(data: DataConfig) -> list[tuple]:
        batches = RowBatches(SPLIT, VOCABULARY, data, seed=3, objectives=("mlm",))
        rows = batches.rows(np.arange(batches.rows_per_epoch))
        alone = [batches.rows(np.array([row])) for row in range(batches.rows_per_epoch)]
        for key, array in rows.items():
            np.testing.assert_array_equal(np.concatenate([one[key] for one in alone]), array, err_msg=key)
        return sorted(
            tuple(ids[numbers == number].tolist())
            for ids, numbers in zip(rows["input_ids"], rows["sequence_ids"], strict=True)
            for number in range(1, numbers.max() + 1)
        )

    single = sequences(DATA)
    assert single == sequences(replace(DATA, packing="pairs", pairs_per_row=4, sequence_length=48))
    assert single != sequences(replace(DATA, mask_power=0.0))


def test_mask_power_is_refused_for_words() -> None:
    with pytest.raises(ValueError, match=r"data.mask_power=0.7 with data.masking='words' has no effect"):
        check_masking(replace(DATA, masking="words"))
