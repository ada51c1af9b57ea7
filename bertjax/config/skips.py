"""Skipped batches: records `STEP+COUNT` of `training.skips`, and the batch that each step gets.

From step STEP on, counted from 0, a run's batches are those COUNT further on, so that COUNT batches are never read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

Skip = tuple[int, int]  # step, count


def parse_skips(texts: Sequence[str]) -> tuple[Skip, ...]:
    """Parse `training.skips`. Raises ValueError for an invalid record, and for steps that do not rise."""
    for text in texts:
        if not re.fullmatch(r"\d+\+[1-9]\d*", text):
            raise ValueError(
                f"training.skips={text!r}: give STEP+COUNT, as in 500+20: from step 500 on, 20 batches are skipped"
            )
    skips = tuple((int(step), int(count)) for step, count in (text.split("+") for text in texts))
    if any(earlier >= later for (earlier, _), (later, _) in itertools.pairwise(skips)):
        raise ValueError(f"training.skips={tuple(texts)}: the steps must rise; put them in order, each step once")
    return skips


def with_skip(texts: Sequence[str], first: int, stop: int) -> tuple[str, ...]:
    """Add a skip: step `first` gets the batch that step `stop` has now, and later steps the batches after it."""
    skips, length = parse_skips(texts), stop - first
    counts = {step: count for step, count in skips if step < first} | {first: length}
    for step, count in skips:
        if step >= first:  # later records move `length` steps earlier
            at = max(step - length, first)
            counts[at] = counts.get(at, 0) + count
    return tuple(f"{step}+{counts[step]}" for step in sorted(counts))


def count_batches(texts: Sequence[str]) -> int:
    """The number of batches that the records skip."""
    return sum(count for _, count in parse_skips(texts))


def batch_number(step: int, skips: Sequence[Skip], start: int = 0) -> int:
    """The number of the batch that a step gets in a stage that begins at step `start`; both count from 0."""
    return step + sum(count for at, count in skips if start <= at <= step)
