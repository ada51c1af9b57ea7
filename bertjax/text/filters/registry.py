"""Registry of filters, and the filters of a config."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

from bertjax.config import DataConfig
from bertjax.config.registry import Registry
from bertjax.storage.lean_import import choose_members
from bertjax.text.filters import exact_duplicates, gopher_quality, gopher_repetition, near_duplicates
from bertjax.text.filters.filter import Filter
from bertjax.text.sources.registry import KINDS, parse_sources

_ALL = (gopher_quality.FILTER, gopher_repetition.FILTER, exact_duplicates.FILTER, near_duplicates.FILTER)
FILTERS = Registry("filters", {one.name: one for one in _ALL}, Filter)


def choose(names: Sequence[str]) -> list[Filter]:
    """Look up the filters of `data.filters`, in order.

    Raises ValueError for an unknown name, one that is named twice, and a missing library.
    """
    chosen = choose_members(FILTERS, names, "data.filters")
    if len({*names}) < len(names):
        raise ValueError(f"data.filters={tuple(names)} names a filter twice; leave one out")
    return chosen


def require_filters(data: DataConfig) -> None:
    """Raise ValueError like `choose`, and for a prose filter with a source of other records."""
    prose = [one.name for one in choose(data.filters) if one.for_prose]
    others = [str(source) for source in parse_sources(data.sources) if KINDS[source.kind].is_sequence]
    if prose and others:
        raise ValueError(
            f"data.filters={prose[0]!r} is for prose, and source {others[0]} has other records; leave the filter out"
        )


def filters_fingerprint(names: Sequence[str]) -> list[list[Any]]:
    """Fingerprint of the filters as JSON: names, versions of their rules, and versions of their libraries."""
    return [
        [one.name, one.version, *([importlib.metadata.version(one.needs[0])] if one.needs else [])]
        for one in choose(names)
    ]
