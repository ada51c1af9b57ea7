"""Held-out sets of a run besides the whole split: one per source, and one for all small sources."""

from __future__ import annotations

from collections.abc import Sequence

MOST_SETS = 16  # with more sets, an evaluation would read only a few rows of each


def evaluation_sets(sizes: Sequence[int]) -> dict[str, list[int]]:
    """Map each set's name to its sources; `sizes` are the held-out tokens or records of each source.

    `eval/source_<n>` is source n alone. With more than `MOST_SETS` sources, the smallest share `eval/small_sources`.
    """
    if len(sizes) < 2:
        return {}
    by_size = sorted(range(len(sizes)), key=lambda number: (-sizes[number], number))
    alone = len(sizes) if len(sizes) <= MOST_SETS else MOST_SETS - 1
    sets = {f"eval/source_{number}": [number] for number in sorted(by_size[:alone])}
    return sets | ({"eval/small_sources": sorted(by_size[alone:])} if by_size[alone:] else {})
