"""A document's title and the passages below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertjax.finetune.positives.positive import Positive, passages

_LONGEST = 150  # characters of a title
_SENTENCE_ENDS = (".", "。", "।", "።", "۔", ",", ";", ":")  # a title may be a question


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (the first paragraph, a passage of the others) if the first is as short as a title, and no sentence."""
    title, *body = paragraphs
    if title.strip() and len(title) <= _LONGEST and not title.endswith(_SENTENCE_ENDS):
        for passage in passages(body):
            yield title, passage


TITLE = Positive("title", pairs)
