"""Selection of the words that train a vocabulary: the most frequent ones within a budget."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertjax.tokenization import training
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_spaced_words, most_frequent, train_tokenizer


def test_spaced_words_are_split_at_white_space():
    assert count_spaced_words(["the  cat,\tthe", "", "東京は 日本"]) == {"the": 2, "cat,": 1, "東京は": 1, "日本": 1}


@given(st.dictionaries(st.text("ab東é", min_size=1, max_size=6), st.integers(1, 4)), st.integers(0, 60))
def test_most_frequent_words_fit_the_budget(counts, budget):
    selected = most_frequent(counts, budget)
    assert selected.items() <= counts.items()
    size = sum(len(word.encode()) for word in selected)
    assert size <= budget
    others = {word: count for word, count in counts.items() if word not in selected}
    assert all(min(selected.values(), default=9) >= count for count in others.values())
    if others:
        assert any(size + len(word.encode()) > budget for word in others)
    assert most_frequent(dict(reversed(list(counts.items()))), budget) == selected


def test_words_seen_once_are_sampled_fairly():
    counts = dict.fromkeys((f"{n:05}" for n in range(10_000)), 1)
    numbers = [int(word) for word in most_frequent(counts, 5 * 1000)]
    assert len(numbers) == 1000 and 4700 < sum(numbers) / len(numbers) < 5300


@pytest.mark.parametrize("kind", [name for name, kind in training.KINDS.own.items() if kind.is_prose])
def test_every_kind_is_trained_within_its_budget(kind, monkeypatch):
    """In text without spaces, nearly all "words" are distinct, and have up to hundreds of characters."""
    counts, rules = {f"{'ab' * (n % 7 + 1)}{n:05}": 1 + n % 3 for n in range(3_000)}, TextRules(False, False)
    few = most_frequent(counts, 9_000)
    assert len(few) < len(counts) / 2
    budgeted = train_tokenizer(kind, few, 300, rules)
    assert train_tokenizer(kind, counts, 300, rules).fingerprint != budgeted.fingerprint
    monkeypatch.setitem(training.KINDS.own, kind, replace(training.KINDS[kind], most_bytes=9_000))
    assert train_tokenizer(kind, counts, 300, rules).fingerprint == budgeted.fingerprint
