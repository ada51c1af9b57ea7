"""Two spans of a document, drawn independently: the crops of Contriever (Izacard et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.positives.positive import Positive
from bertjax.input.randomness import derive_key, hash64, uniform

_WORDS = 128  # of a text that gives one pair
_LEAST, _MOST = 0.1, 0.5  # of the text: the length of a span


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield two spans, which may overlap, of each run of 128 words; of a shorter rest if it has 32."""
    text = " ".join(paragraphs)
    spaced = len(text.split()) > len(text) / 20
    words = text.split() if spaced else list(text)
    for place, start in enumerate(range(0, len(words), _WORDS)):
        part = words[start : start + _WORDS]
        if len(part) >= _WORDS // 4:
            size, at, other_size, other_at = uniform(hash64(derive_key("crops", number, place), np.arange(4))).tolist()
            first, second = _span(part, size, at), _span(part, other_size, other_at)
            yield (" " if spaced else "").join(first), (" " if spaced else "").join(second)


def _span(words: Sequence[str], size: float, at: float) -> Sequence[str]:
    count = max(1, round(len(words) * (_LEAST + (_MOST - _LEAST) * size)))
    start = int(at * (len(words) - count + 1))
    return words[start : start + count]


CROPS = Positive("crops", pairs)
