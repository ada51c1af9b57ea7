"""A sentence without most of its words, and the whole one: the noise of TSDAE (Wang et al. 2021), told apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.positives.positive import Positive, sentences, split_words
from bertjax.input.randomness import derive_key, hash64, uniform

_DELETED = 0.6  # TSDAE's best share


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (a sentence with a share of its words, in order, the sentence). One word stays at least."""
    for place, sentence in enumerate(sentences(paragraphs)):
        words, space = split_words(sentence)
        draws = uniform(hash64(derive_key("deletion", number, place), np.arange(len(words))))
        kept = [word for word, draw in zip(words, draws, strict=True) if draw >= _DELETED]
        yield space.join(kept or [words[int(draws.argmax())]]), sentence


DELETION = Positive("deletion", pairs)
