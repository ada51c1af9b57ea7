"""Two copies of a sentence, each without half of its words.

A vector that both copies share cannot depend on one word, and words that all sentences have tell none apart. It needs
no dropout, which a small model may never have been trained with. The noise is that of TSDAE (Wang et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.positives.positive import Positive, sentences, split_words
from bertjax.input.randomness import derive_key, hash64, uniform

_DELETED = 0.5


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield each sentence twice, with words deleted independently, in order. One word stays at least."""
    for place, sentence in enumerate(sentences(paragraphs)):
        first, second = delete_words(sentence, 2, _DELETED, "deletion", number, place)
        yield first, second


def delete_words(sentence: str, copies: int, share: float, *key: str | int) -> list[str]:
    """Copies of a sentence, each without about `share` of its words, drawn by `key`. One word stays at least."""
    words, space = split_words(sentence)
    draws = uniform(hash64(derive_key(*key), np.arange(copies * len(words)))).reshape(copies, -1)
    return [
        space.join(word for word, is_kept in zip(words, row >= min(share, row.max()), strict=True) if is_kept)
        for row in draws
    ]


DELETION = Positive("deletion", pairs)
