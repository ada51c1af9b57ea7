"""A sentence and itself, under two masks of dropout (unsupervised SimCSE, Gao et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertjax.finetune.positives.positive import Positive, sentences


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield every sentence twice."""
    for sentence in sentences(paragraphs):
        yield sentence, sentence


DROPOUT = Positive("dropout", pairs, needs_dropout=True)
