"""Counting the words of text, and training a vocabulary of any kind on the counts."""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from bertjax.tokenization.bpe_training import count_words, train_byte_level, train_wordpiece
from bertjax.tokenization.sentencepiece import SentencePiece, normalizer, read_model
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import WordPiece

Kind = Literal["wordpiece", "unigram", "bpe", "byte_bpe"]
# Of distinct words, so that training takes some 2 GB of memory and some minutes at most, in any script.
MOST_BYTES = {"wordpiece": 1 << 25, "unigram": 1 << 26, "bpe": 1 << 26, "byte_bpe": 1 << 24}
TRAINER_VERSION = 3  # of counting and training; a change makes other vocabularies


def count_for(kind: Kind, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    """The word counts that the trainer of a kind needs."""
    return count_words(texts, rules) if kind == "wordpiece" else count_spaced_words(texts)


def train_tokenizer(
    kind: Kind,
    word_counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tokenizer:
    """Train on words that `count_for` counted; the same counts give the same bytes.

    `progress` is called with (pieces done, total), except by SentencePiece. Raises ValueError if there are no words, or
    no room for them.
    """
    word_counts = most_frequent(word_counts, MOST_BYTES[kind])
    if kind == "wordpiece":
        return WordPiece(train_wordpiece(word_counts, vocab_size, progress), rules)
    if kind == "byte_bpe":
        return train_byte_level(word_counts, vocab_size, rules, progress)
    return train_sentencepiece(word_counts, vocab_size, rules, kind)


def count_spaced_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words between white space, without normalising them."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    return words


def most_frequent(word_counts: Mapping[str, int], most_bytes: int) -> dict[str, int]:
    """The most frequent words that have together at most so many bytes of UTF-8.

    Where words are spaced this leaves out next to nothing. Where they are not, "words" are sentences that occur once;
    of those a hash chooses, so that they are a fair sample of the text.
    """
    sizes = {word: len(word.encode()) for word in word_counts}
    if sum(sizes.values()) <= most_bytes:
        return dict(word_counts)
    kept, left = {}, most_bytes
    for word in sorted(word_counts, key=lambda word: (-word_counts[word], hashlib.sha256(word.encode()).digest())):
        left -= sizes[word]
        if left < 0:
            break
        kept[word] = word_counts[word]
    return kept


def smoothed(of_source: Iterable[Counter[str]], temperature: float) -> Counter[str]:
    """The sources' word counts in one, each scaled so that its share goes by its words to the power `temperature`.

    So a small language keeps pieces next to a large one (multilingual BERT: 0.7). With 1 the counts are unchanged;
    with less they are in all about as many as before, and what is scaled below a half is left out.
    """
    counters = [counts for counts in of_source if counts]
    joined: Counter[str] = Counter()
    if temperature == 1 or not counters:
        for counts in counters:
            joined.update(counts)
        return joined
    sizes = [counts.total() for counts in counters]
    powers = [size**temperature for size in sizes]
    for counts, size, power in zip(counters, sizes, powers, strict=True):
        scale = power / sum(powers) * sum(sizes) / size
        joined.update({word: scaled for word, count in counts.items() if (scaled := round(count * scale))})
    return joined


CHARACTER_COVERAGE = 0.9999

_THREADS = 8  # sums are taken by thread, so that another number would change the last bits
_LONGEST_WORD = 4192  # bytes; the library's own limit for a line
_SCORE_STEP = 2.0**-10


def train_sentencepiece(
    word_counts: Mapping[str, int], vocab_size: int, rules: TextRules, kind: Literal["unigram", "bpe"]
) -> SentencePiece:
    """A model of `count_spaced_words`, with ALBERT's special tokens; a small text gives fewer than `vocab_size` pieces.

    Raises ValueError if there are no words, or the characters alone are more than `vocab_size`.
    """
    from sentencepiece import SentencePieceTrainer

    words = _normalised(word_counts, rules)
    if not words:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    written = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter([f"{word}\t{count}" for word, count in words]),
            input_format="tsv",
            model_writer=written,
            model_type=kind,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=CHARACTER_COVERAGE,
            max_sentence_length=_LONGEST_WORD + 32,
            num_threads=_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise ValueError(f"data.vocab_size={vocab_size}: sentencepiece cannot train on this text: {error}") from None
    return SentencePiece(_with_exact_scores(written.getvalue()), rules)


def _normalised(word_counts: Mapping[str, int], rules: TextRules) -> list[tuple[str, int]]:
    """Words after our rules, most frequent first. A word that is too long for the library is left out."""
    normalize = normalizer(rules).normalize_str
    words: Counter[str] = Counter()
    for word, count in word_counts.items():
        words[normalize(word)] += count
    fitting = [(word, count) for word, count in words.items() if word and len(word.encode()) <= _LONGEST_WORD]
    return sorted(fitting, key=lambda item: (-item[1], item[0]))


def _with_exact_scores(model: bytes) -> bytes:
    """The model with scores rounded so that 32-bit sums of thousands are exact.

    Then no two programs can disagree, over the last bits of a sum, about which way to cut a word is best.
    """
    proto = read_model(model, "the trained model")
    for piece in proto.pieces:
        piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return proto.SerializeToString(deterministic=True)
