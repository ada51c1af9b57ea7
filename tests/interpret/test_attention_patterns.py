"""Pattern strengths: 1 for attention that shows exactly one pattern, 0 for uniform attention."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import Config, DataConfig, ModelConfig
from bertjax.interpret.attention_patterns import (
    NEXT,
    PATTERNS,
    PREDICTIVE,
    PREVIOUS,
    SAME,
    SAME_ACROSS,
    SEPARATORS,
    PatternSums,
    WordTable,
    targets,
    whole_words,
)
from bertjax.interpret.token_rows import TokenRow, read_row
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

WORDS = ["i", "went", "to", "the", "store", "shop", "at", "bought", "fresh", "straw", "##berries", "sweet", ".", ","]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, *WORDS], TextRules(True, True))

#    0   1   2    3    4     5    6   7    8    9    10   11  12   13     14    15        16 17
#  [CLS] i  went  to  the store  . [SEP]  at  the  shop  ,   i  bought straw ##berries  . [SEP]
ROW = read_row(TOKENIZER, ["I went to the store.", "At the shop, I bought strawberries."], 64)
RELATED = np.eye(18, dtype=bool)
for a, b in ((1, 12), (4, 9), (5, 10), (2, 8)):  # declare "store" and "shop", "went" and "at" etc. as related
    RELATED[a, b] = RELATED[b, a] = True
RELATED &= ROW.is_word[:, None] & ROW.is_word
PREDICTORS = {14: 1, 5: 13, 3: None}  # predictors that are neither adjacent nor related

# Each token's targets under each pattern, written by hand.
BY_HAND = {
    NEXT: {i: [i + 1] for i in [*range(1, 6), *range(8, 16)]},
    PREVIOUS: {i: [i - 1] for i in [*range(2, 7), *range(9, 17)]},
    SAME: {i: [i] for i in (1, 2, 3, 4, 5, 8, 9, 10, 12, 13, 14, 15)},
    SAME_ACROSS: {1: [12], 12: [1], 4: [9], 9: [4], 5: [10], 10: [5], 2: [8], 8: [2]},
    PREDICTIVE: {14: [1], 5: [13]},
    SEPARATORS: {i: [0, 7, 17] for i in [*range(1, 7), *range(8, 17)]},
}


def test_words_exclude_signs_and_special_tokens():
    assert [ROW.tokenizer.tokens[i] for i in ROW.ids] == [
        "[CLS]", "i", "went", "to", "the", "store", ".", "[SEP]",
        "at", "the", "shop", ",", "i", "bought", "straw", "##berries", ".", "[SEP]",
    ]  # fmt: skip
    assert np.flatnonzero(~ROW.is_word).tolist() == [0, 6, 7, 11, 16, 17]
    assert ROW.word_texts[14] == ROW.word_texts[15] == "strawberries"
    assert ROW.word_numbers[14] == ROW.word_numbers[15] == ROW.word_numbers[16] - 1


def test_characters_are_words_in_unspaced_scripts():
    tokenizer = WordPiece([*SPECIAL_TOKENS, "a", "go", "##go", "北", "##京", "京", "。", "7"], TextRules(True, True))
    assert [tokenizer.tokens[i] for i in whole_words(tokenizer)] == ["go", "北", "京"]


def test_targets_match_those_written_by_hand():
    mask = targets(ROW, RELATED, PREDICTORS)
    for pattern, looks in BY_HAND.items():
        assert {i: np.flatnonzero(row).tolist() for i, row in enumerate(mask[pattern]) if row.any()} == looks


def head_that_shows(pattern):
    """Attention [1, 1, n, n] that is uniform over the pattern's targets, or over all tokens without targets."""
    attention = np.full((18, 18), 1 / 18)
    for token, looks in BY_HAND[pattern].items():
        attention[token] = 0
        attention[token, looks] = 1 / len(looks)
    return attention[None, None]


def sums_of(*attention):
    sums = PatternSums(1, len(attention))
    sums.add(np.concatenate(attention, axis=1), targets(ROW, RELATED, PREDICTORS), np.ones((18, 18), bool))
    return sums


@pytest.mark.parametrize("pattern", range(len(PATTERNS)), ids=lambda n: PATTERNS[n].name)
def test_pattern_scores_are_1_for_a_pure_head(pattern):
    strengths = sums_of(head_that_shows(pattern)).strengths[:, 0, 0]
    assert strengths[pattern] == pytest.approx(1, abs=1e-12)
    assert np.delete(strengths, pattern).max() < 1e-12


def test_even_attention_shows_nothing():
    sums = sums_of(np.full((1, 1, 18, 18), 1 / 18))
    np.testing.assert_allclose(sums.strengths, 0, atol=1e-12)
    np.testing.assert_allclose(sums.chances, [1 / 18] * 5 + [3 / 18], rtol=1e-12)
    assert sums.tokens.tolist() == [13, 13, 12, 8, 2, 15]


def test_pattern_scores_are_proportional():
    even = np.full((1, 1, 18, 18), 1 / 18)
    for pattern in range(len(PATTERNS)):
        strengths = sums_of(0.5 * head_that_shows(pattern) + 0.5 * even).strengths
        assert strengths[pattern, 0, 0] == pytest.approx(0.5, abs=1e-12)


def test_heads_and_rows_are_distinguished():
    sums = PatternSums(2, 3)
    heads = [head_that_shows(pattern) for pattern in range(6)]
    attention = np.concatenate(heads, axis=1).reshape(2, 3, 18, 18)
    for _ in range(3):
        sums.add(attention, targets(ROW, RELATED, PREDICTORS), np.ones((18, 18), bool))
    np.testing.assert_allclose([sums.strengths[n].ravel()[n] for n in range(6)], 1, atol=1e-12)
    assert [int(one.argmax()) for one in sums.strengths] == list(range(6))
    assert sums.tokens[SAME_ACROSS] == 24


def test_causal_mask_limits_pattern_targets():
    sums, seen = PatternSums(1, 1), np.tri(18, dtype=bool)
    sums.add(np.tri(18)[None, None] / np.arange(1, 19)[:, None], targets(ROW, RELATED, PREDICTORS), seen)
    assert sums.tokens[NEXT] == 0 and np.isnan(sums.strengths[NEXT]).all()
    assert sums.tokens[SAME_ACROSS] == 4
    np.testing.assert_allclose(sums.strengths[[PREVIOUS, SAME, SAME_ACROSS, SEPARATORS]], 0, atol=1e-12)


def test_one_sentence_has_no_other():
    row = read_row(TOKENIZER, ["I went to the store."], 64)
    mask = targets(row, np.eye(len(row), dtype=bool), {})
    assert not mask[SAME_ACROSS].any() and mask[NEXT].any()


def model_with(table):
    config = ModelConfig(vocab_size=len(table), hidden_size=table.shape[1], num_attention_heads=1)
    params = {"encoder": {"embeddings": {"word": jnp.asarray(table, jnp.float32)}}}
    return TrainedModel(None, 1, Config(model=config, data=DataConfig()), TOKENIZER, None, params)


def test_related_words_are_nearest_embeddings(monkeypatch):
    monkeypatch.setattr("bertjax.interpret.attention_patterns.RELATED", 1)
    table = np.random.default_rng(0).normal(size=(TOKENIZER.vocab_size, 64))
    place = TOKENIZER.tokens.index
    table[place("shop")] = table[place("store")] + 0.1 * table[place("shop")]
    related = WordTable(model_with(table)).related(ROW)
    assert related[5, 10] and related[10, 5], "store and shop"
    assert related[1, 12] and related[4, 9], "the same word"
    assert not related[14, 15], "pieces of one occurrence of a word"
    assert related[14, 14] and not related[6].any() and not related[:, 0].any(), "signs are no words"
    assert (related == related.T).all()


def test_pieces_of_repeated_words_are_related():
    row = TokenRow.of(TOKENIZER, TOKENIZER.encode_sentences(["strawberries", "sweet strawberries"]))
    related = WordTable(model_with(np.random.default_rng(0).normal(size=(TOKENIZER.vocab_size, 64)))).related(row)
    # [CLS] straw ##berries [SEP] sweet straw ##berries [SEP]
    assert related[1, 5] and related[1, 6] and related[2, 5] and not related[1, 2]
