"""Count the words of text, and train a vocabulary of any kind on the counts."""

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
# Of distinct words: bounds training to about 2 GB of memory and a few minutes, in any script.
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
    """Train on the counts of `count_for`; the same counts give the same bytes.

    `progress` gets (pieces done, total), except from SentencePiece. Raises ValueError if there are no words, or no room
    for them.
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
    """The most frequent words with together at most `most_bytes` of UTF-8.

    With spaces between words this leaves out next to nothing. Without, "words" are sentences that occur once; a hash
    chooses a fair sample of them.
    """
    sizes = {word: len(word.encode()) for word in word_counts}
    if sum(sizes.values()) <= most_bytes:
        return dict(word_counts)
    chosen, left = {}, most_bytes
    for word in sorted(word_counts, key=lambda word: (-word_counts[word], hashlib.sha256(word.encode()).digest())):
        left -= sizes[word]
        if left < 0:
            break
        chosen[word] = word_counts[word]
    return chosen


def smoothed(source_counts: Iterable[Counter[str]], temperature: float) -> Counter[str]:
    """Join the sources' word counts, scaled so that a source's share is its size to the power `temperature`.

    That leaves a small language some pieces next to a large one (multilingual BERT: 0.7). With 1 the counts are
    unchanged; with less their sum stays about the same, and counts scaled below a half are dropped.
    """
    counters = [counts for counts in source_counts if counts]
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

_THREADS = 8  # sums are per thread, so another number would change the last bits
_LONGEST_WORD = 4192  # bytes; the library's own limit for a line
_SCORE_STEP = 2.0**-10


def train_sentencepiece(
    word_counts: Mapping[str, int], vocab_size: int, rules: TextRules, kind: Literal["unigram", "bpe"]
) -> SentencePiece:
    """Train a model on `count_spaced_words`, with ALBERT's special tokens; a small text gives fewer pieces.

    Raises ValueError if there are no words, or more characters than `vocab_size`.
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
    """Words after our rules, most frequent first, without words too long for the library."""
    normalize = normalizer(rules).normalize_str
    words: Counter[str] = Counter()
    for word, count in word_counts.items():
        words[normalize(word)] += count
    fitting = [(word, count) for word, count in words.items() if word and len(word.encode()) <= _LONGEST_WORD]
    return sorted(fitting, key=lambda item: (-item[1], item[0]))


def _with_exact_scores(model: bytes) -> bytes:
    """Round the model's scores so that 32-bit sums of thousands are exact.

    Then two programs cannot disagree, over the last bits of a sum, about the best segmentation of a word.
    """
    proto = read_model(model, "the trained model")
    for piece in proto.pieces:
        piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return proto.SerializeToString(deterministic=True)
