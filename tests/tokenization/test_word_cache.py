"""The hash table of words gives the same ids as the chunk encoder, in any state."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.tokenization import word_cache
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.word_cache import WordCache
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

LETTERS = "abcdeghilnoprstuyz"
WHOLE = ("the", "play", "##ing", "antidisestablish", "é", "中", "##\ufdd0", ".", "'", "[", "]")
WORDPIECE = WordPiece(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WHOLE], TextRules(True, False)
)
CHUNKS = WORDPIECE._chunks

pieces = st.one_of(
    st.sampled_from(["the", "playing", " ", "  ", "\t", "\0", "\r\n", "\x0b", "\x1c", "\x85", "\u2028", "中文"]),
    st.sampled_from(["antidisestablish", "antidisestablishe", "ab" * 8, "ab" * 9, "play" * 60, "é" * 8, "é" * 9]),
    st.sampled_from(["[MASK]", "[SEP]", "it's", "e\u0301", "\u0301", "\ufdd0", "\U0002f800", "\u00a0", "\x7f", "\x01"]),
    st.text("abz", min_size=1, max_size=3),
    st.text("ab", min_size=1, max_size=2).map("playplay".__add__),
    st.characters(exclude_categories=["Cs"]),
)
texts = st.lists(st.lists(pieces, max_size=12).map("".join), max_size=6)


def assert_same(cache: WordCache, sentences: list[str]) -> None:
    ids, lengths = cache.encode(sentences)
    expected_ids, expected_lengths = CHUNKS.encode(sentences)
    assert ids.dtype == expected_ids.dtype and lengths.dtype == expected_lengths.dtype
    assert ids.tolist() == expected_ids.tolist()
    assert lengths.tolist() == expected_lengths.tolist()


# With 1 or 4 slots, and 8 behind them, the table is always full; with 64, words often find their first slots taken.
@pytest.mark.parametrize("slots", [1, 4, 64, 1 << 12])
@settings(max_examples=40)
@given(sentences=st.lists(texts, min_size=1, max_size=3))
def test_cache_encodes_like_the_chunk_encoder(slots: int, sentences: list[list[str]]) -> None:
    cache = WordCache(CHUNKS, slots, few=0)
    for batch in [*sentences, *sentences]:  # twice, so that the words are cached
        assert_same(cache, batch)
    most_words = max(sum(len(sentence) for sentence in batch) for batch in sentences)
    assert 2 * cache._taken <= slots + 2 * most_words


@settings(max_examples=40)
@given(st.lists(texts, min_size=1, max_size=3), st.integers(0, 2))
def test_words_with_the_same_first_slot_are_distinct(sentences: list[list[str]], slot: int) -> None:
    class Colliding(WordCache):
        def _first_slots(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
            return (low % np.uint64(2)).astype(np.int64) + slot

    cache = Colliding(CHUNKS, few=0)
    for batch in [*sentences, *sentences]:
        assert_same(cache, batch)
    assert cache._taken <= word_cache._PROBES + 1


def test_word_with_a_taken_slot_is_inserted_behind_it() -> None:
    recorded = Recorded()
    cache = WordCache(recorded, 1 << 6, few=0)
    cache._first_slots = lambda low, high: np.zeros(len(low), np.int64)
    words = list("abcdeghilnop")
    for _ in range(2):
        cache.encode(["a b", "c"])
        cache.encode([" ".join(words)])
    assert recorded.calls == [["a", "b", "c"], words[3:], words[8:]]


@pytest.mark.parametrize(
    "sentences",
    [[], [""], ["", ""], [" "], ["\0"], ["\0", " ", ""], ["", "the"], ["the", ""], ["\n", "the", "\t", "."]],
)
def test_sentences_without_words_give_no_tokens(sentences: list[str]) -> None:
    assert_same(WordCache(CHUNKS, few=0), sentences)


class Recorded:
    """`CHUNKS`, with a record of the words in each call."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append(list(words))
        return CHUNKS.encode(words)


def test_chunks_encode_a_short_word_once() -> None:
    """Words of more than 16 bytes or 4 ids are never cached."""
    recorded = Recorded()
    cache = WordCache(recorded, few=0)
    text = ["The antidisestablish playing, antidisestablishing é" + "é" * 8, "playing abcde abcd"]
    cache.encode(text)
    cache.encode(text)
    words = ["The", "antidisestablish", "playing", ",", "antidisestablishing", "é" * 9, "playing", "abcde", "abcd"]
    assert recorded.calls == [words, ["antidisestablishing", "é" * 9, "abcde"]]
    assert cache._taken == 5


def test_full_table_is_emptied() -> None:
    cache = WordCache(CHUNKS, 16, few=0)
    sizes = {array.nbytes for array in (cache._keys, cache._ids, cache._counts)}
    words = [first + second for first in LETTERS for second in LETTERS]
    for word in words:
        assert_same(cache, [word])
        assert cache._taken <= 9
    assert {array.nbytes for array in (cache._keys, cache._ids, cache._counts)} == sizes
    assert_same(cache, words)
    assert cache._taken <= 16 + word_cache._PROBES
    assert_same(cache, words)


def test_lone_surrogate_is_refused() -> None:
    cache = WordCache(CHUNKS, few=0)
    with pytest.raises(ValueError, match=r"lone surrogate, in 'th\\ud800e'.*correct the source"):
        cache.encode(["the", "th\ud800e."])
    assert_same(cache, ["the"])


def test_short_text_bypasses_the_table() -> None:
    cache = WordCache(CHUNKS)
    assert_same(cache, ["the playing"])
    assert cache._taken == 0
    assert_same(cache, ["the playing "] * 1000)
    assert cache._taken == 2
