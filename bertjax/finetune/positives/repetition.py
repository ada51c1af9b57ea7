"""A sentence with some of its words twice, and the sentence: ESimCSE (Wu et al. 2022).

The texts of a pair differ in length, so that a vector gains nothing from telling lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.positives.positive import Positive, sentences, split_words
from bertjax.input.randomness import derive_key, hash64, uniform

_MOST_REPEATED = 0.32  # of the words, as in the paper


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (a sentence with up to a share of its words repeated in place, the sentence)."""
    for place, sentence in enumerate(sentences(paragraphs)):
        words, space = split_words(sentence)
        draws = uniform(hash64(derive_key("repetition", number, place), np.arange(1 + len(words))))
        most = max(2, int(_MOST_REPEATED * len(words)))
        repeated = set(np.argsort(draws[1:], kind="stable")[: int(draws[0] * (most + 1))].tolist())
        twice = [word for at, word in enumerate(words) for word in [word] * (1 + (at in repeated))]
        yield space.join(twice), sentence


REPETITION = Positive("repetition", pairs)
