"""Training a byte-level BPE, laid out as RoBERTa's: special tokens, the 256 bytes, pieces, the mask token."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping

from tokenizers import pre_tokenizers

from bertjax.tokenization.byte_level import SPECIAL_TOKENS, ByteLevelBPE, byte_letters, normalizer
from bertjax.tokenization.merging import Merger
from bertjax.tokenization.tokenizer import TextRules

_HEADER = "#version: 0.2"


def train_byte_level(
    word_counts: Mapping[str, int], vocab_size: int, rules: TextRules, progress: Callable[[int, int], None]
) -> ByteLevelBPE:
    """A byte-level BPE of `count_spaced_words`, shorter than `vocab_size` where no pair occurs twice any more.

    Raises ValueError if there are no words, or no room for merges.
    """
    if not word_counts:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    letters = sorted(byte_letters())
    if (room := vocab_size - len(SPECIAL_TOKENS)) < len(letters):
        least = len(letters) + len(SPECIAL_TOKENS)
        raise ValueError(f"data.vocab_size={vocab_size} is too small: a byte-level vocabulary has {least} at least")
    words = _in_bytes(word_counts, rules)
    merger = Merger(letters, [list(word) for word in words], list(words.values()), continuing="")
    merger.merge_all(room, progress)
    *first, mask = SPECIAL_TOKENS.values()
    tokens = [*first, *merger.pieces, mask]
    vocabulary = json.dumps({token: number for number, token in enumerate(tokens)}, ensure_ascii=False)
    merges = "".join(f"{line}\n" for line in (_HEADER, *(" ".join(pair) for pair in merger.merges)))
    return ByteLevelBPE(vocabulary.encode(), merges.encode(), rules)


def _in_bytes(word_counts: Mapping[str, int], rules: TextRules) -> dict[str, int]:
    """What byte-level BPE makes words of, each after a space: stretches of letters, digits or others, in bytes."""
    normalize, cut = normalizer(rules).normalize_str, pre_tokenizers.ByteLevel(add_prefix_space=True)
    words: Counter[str] = Counter()
    for word in sorted(word_counts):
        for stretch, _ in cut.pre_tokenize_str(normalize(word)):
            words[stretch] += word_counts[word]
    return words
