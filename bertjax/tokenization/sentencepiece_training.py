"""Training a SentencePiece model with the sentencepiece library, the same to the byte for the same words.

The library splits text at white space before anything else, so that words with their counts say all that text would;
they take the memory of a vocabulary, not of a corpus.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from bertjax.tokenization.sentencepiece import SentencePiece, normalizer, read_model
from bertjax.tokenization.tokenizer import TextRules

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
