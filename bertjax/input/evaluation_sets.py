"""The held-out sets of a run beside the whole: a set for each source, and one for all small sources."""

from __future__ import annotations

from collections.abc import Sequence

MOST_SETS = 16  # an evaluation of more would have a few rows of each


def evaluation_sets(sizes: Sequence[int]) -> dict[str, list[int]]:
    """Name -> sources of each set; `sizes` are the held-out tokens or records of each source.

    `eval/source_<n>` has source n alone. Of more than `MOST_SETS` sources the largest are alone, and the others are
    together in `eval/small_sources`.
    """
    if len(sizes) < 2:
        return {}
    by_size = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
    alone = len(sizes) if len(sizes) <= MOST_SETS else MOST_SETS - 1
    sets = {f"eval/source_{number}": [number] for number in sorted(by_size[:alone])}
    return sets | ({"eval/small_sources": sorted(by_size[alone:])} if by_size[alone:] else {})
