"""Two successive passages of a document."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from bertjax.finetune.positives.positive import Positive, passages


def pairs(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield each passage with the next one."""
    yield from itertools.pairwise(passages(paragraphs))


NEIGHBORS = Positive("neighbors", pairs)
