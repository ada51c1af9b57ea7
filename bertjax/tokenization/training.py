"""Count the words of text, and train a vocabulary of any kind on the counts."""

from __future__ import annotations

import difflib
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from bertjax.config.registry import Registry
from bertjax.tokenization.bpe_training import count_words, train_byte_level, train_wordpiece
from bertjax.tokenization.sentencepiece import SentencePiece, normalizer, read_model
from bertjax.tokenization.symbols import CHARACTERS, INTEGERS, KMERS, REGEX, SEQUENCE_BPE
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.tokenizer_kind import TokenizerKind
from bertjax.tokenization.wordpiece import WordPiece

TRAINER_VERSION = 3  # version of counting and training; a change makes other vocabularies
CHARACTER_COVERAGE = 0.9999

_THREADS = 8  # fixed, because sums are per thread, and another number would change their last bits
_LONGEST_WORD = 4192  # bytes; the library's limit for a line
_SCORE_STEP = 2.0**-10


def count_for(written: str, texts: Iterable[str], rules: TextRules) -> Counter[str]:
    """Count texts for the trainer of a kind of vocabulary, as in `data.tokenizer`."""
    kind, argument = parse_kind(written)
    assert kind.count is not None, f"{written} is not trained"
    return kind.count(argument, texts, rules)


def train_tokenizer(
    written: str,
    word_counts: Mapping[str, int],
    vocab_size: int,
    rules: TextRules,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tokenizer:
    """Train a kind of vocabulary on the counts of `count_for`; the same counts give the same bytes.

    `progress` is called with (pieces done, total), except by SentencePiece. Raises ValueError if there are no words, or
    if `vocab_size` is too small.
    """
    kind, argument = parse_kind(written)
    assert kind.train is not None, f"{written} is not trained"
    return kind.train(argument, most_frequent(word_counts, kind.most_bytes), vocab_size, rules, progress)


def parse_kind(written: str) -> tuple[TokenizerKind, str]:
    """Parse `NAME[:ARGUMENT]`, as in `data.tokenizer`, into kind and argument. Raises ValueError if it is invalid."""
    name, colon, argument = written.partition(":")
    kind = KINDS.get(name)
    forms = ", ".join(entry.form or entry.name for entry in KINDS.values())
    if kind is None:
        near = difflib.get_close_matches(name, KINDS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"data.tokenizer={written!r}: unknown kind {name!r}; {hint}kinds: {forms}")
    if colon and not kind.form:
        raise ValueError(f"data.tokenizer={written!r}: {name} takes no argument; write {name}")
    kind.build(argument)
    return kind, argument


def count_spaced_words(texts: Iterable[str]) -> Counter[str]:
    """Count words separated by white space, without normalising them."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(text.split())
    return words


def most_frequent(word_counts: Mapping[str, int], most_bytes: int) -> dict[str, int]:
    """The most frequent words, with at most `most_bytes` bytes of UTF-8 in total.

    If words are separated by spaces, this omits almost nothing. Otherwise "words" are sentences that occur once, and a
    hash chooses a fair sample of them.
    """
    sizes = {word: len(word.encode()) for word in word_counts}
    if sum(sizes.values()) <= most_bytes:
        return dict(word_counts)
    chosen, room = {}, most_bytes
    for word in sorted(word_counts, key=lambda word: (-word_counts[word], hashlib.sha256(word.encode()).digest())):
        room -= sizes[word]
        if room < 0:
            break
        chosen[word] = word_counts[word]
    return chosen


def smoothed(source_counts: Iterable[Counter[str]], temperature: float) -> Counter[str]:
    """Sum the sources' word counts, scaled so that a source's share is its size to the power `temperature`.

    This gives a small language more pieces next to a large one (multilingual BERT: 0.7). With 1 the counts do not
    change; below 1 their sum stays about the same, and counts scaled below a half are dropped.
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


def train_sentencepiece(
    word_counts: Mapping[str, int], vocab_size: int, rules: TextRules, kind: Literal["unigram", "bpe"]
) -> SentencePiece:
    """Train a model on the counts of `count_spaced_words`, with ALBERT's special tokens.

    A small text gives fewer pieces. Raises ValueError if there are no words, or more characters than `vocab_size`.
    """
    from sentencepiece import SentencePieceTrainer

    words = _normalise(word_counts, rules)
    if not words:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    output = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter([f"{word}\t{count}" for word, count in words]),
            input_format="tsv",
            model_writer=output,
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
    return SentencePiece(_round_scores(output.getvalue()), rules)


def _normalise(word_counts: Mapping[str, int], rules: TextRules) -> list[tuple[str, int]]:
    """Normalise words by our rules; most frequent first, without words that are too long for the library."""
    normalize = normalizer(rules).normalize_str
    words: Counter[str] = Counter()
    for word, count in word_counts.items():
        words[normalize(word)] += count
    fitting = [(word, count) for word, count in words.items() if word and len(word.encode()) <= _LONGEST_WORD]
    return sorted(fitting, key=lambda item: (-item[1], item[0]))


def _round_scores(model: bytes) -> bytes:
    """Round the model's scores so that 32-bit sums of thousands are exact.

    Then all programs agree on the best segmentation of a word, which otherwise may depend on the last bits of a sum.
    """
    proto = read_model(model, "the trained model")
    for piece in proto.pieces:
        piece.score = round(piece.score / _SCORE_STEP) * _SCORE_STEP
    return proto.SerializeToString(deterministic=True)


def _sentencepiece(kind: Literal["unigram", "bpe"]) -> TokenizerKind:
    return TokenizerKind(
        kind,
        lambda _, texts, rules: count_spaced_words(texts),
        lambda _, counts, size, rules, progress: train_sentencepiece(counts, size, rules, kind),
        recomposes=True,
        most_bytes=1 << 26,
    )


_WORDPIECE = TokenizerKind(
    "wordpiece",
    lambda _, texts, rules: count_words(texts, rules),
    lambda _, counts, size, rules, progress: WordPiece(train_wordpiece(counts, size, progress), rules),
    most_bytes=1 << 25,
    text_bytes=1 << 30,
)
_BYTE_BPE = TokenizerKind(
    "byte_bpe",
    lambda _, texts, rules: count_spaced_words(texts),
    lambda _, counts, size, rules, progress: train_byte_level(counts, size, rules, progress),
)
_ALL = (
    _WORDPIECE,
    _sentencepiece("unigram"),
    _sentencepiece("bpe"),
    _BYTE_BPE,
    CHARACTERS,
    INTEGERS,
    KMERS,
    REGEX,
    SEQUENCE_BPE,
)
KINDS = Registry("tokenizers", {kind.name: kind for kind in _ALL}, TokenizerKind)
