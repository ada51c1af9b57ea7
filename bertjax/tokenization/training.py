"""A vocabulary of any kind from the words of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.word_counts import count_spaced_words, most_frequent
from bertjax.tokenization.wordpiece import WordPiece
from bertjax.tokenization.wordpiece_training import count_words, train_wordpiece

Kind = Literal["wordpiece", "unigram", "bpe", "byte_bpe"]
# Of distinct words, so that training takes some 2 GB of memory and some minutes at most, in any script.
MOST_BYTES = {"unigram": 1 << 26, "bpe": 1 << 26, "byte_bpe": 1 << 24}
TRAINER_VERSION = 2  # of counting and training; a change makes other vocabularies


def count_for(kind: Kind, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    """The words of texts as the trainer of a kind takes them."""
    return count_words(texts, rules) if kind == "wordpiece" else count_spaced_words(texts)


def train_tokenizer(
    kind: Kind,
    word_counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tokenizer:
    """Train on words that `count_for` counted; the same counts give the same bytes.

    `progress` gets (pieces done, pieces in all), but of SentencePiece. Raises ValueError if there are no words, or no
    room for them.
    """
    if kind == "wordpiece":
        return WordPiece(train_wordpiece(word_counts, vocab_size, progress), rules)
    word_counts = most_frequent(word_counts, MOST_BYTES[kind])
    if kind == "byte_bpe":
        from bertjax.tokenization.byte_level_training import train_byte_level

        return train_byte_level(word_counts, vocab_size, rules, progress)
    from bertjax.tokenization.sentencepiece_training import train_sentencepiece

    return train_sentencepiece(word_counts, vocab_size, rules, kind)
