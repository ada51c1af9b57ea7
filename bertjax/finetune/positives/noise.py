"""A sentence without most of its words, and the sentence: the pairs of TSDAE (Wang, Reimers and Gurevych 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertjax.finetune.positives.deletion import delete_words
from bertjax.finetune.positives.positive import Positive, sentences

_DELETED = 0.6  # the best share of the paper's figure 3


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (a sentence without 60 % of its words, the sentence). One word stays at least."""
    for place, sentence in enumerate(sentences(paragraphs)):
        (damaged,) = delete_words(sentence, 1, _DELETED, "noise", number, place)
        yield damaged, sentence


NOISE = Positive("noise", pairs)
