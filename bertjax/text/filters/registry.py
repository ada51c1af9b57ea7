"""The filters by name, and those of a config."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

from bertjax.config import DataConfig
from bertjax.config.registry import Registry
from bertjax.storage.lean_import import require_package
from bertjax.text.filters import exact_duplicates, gopher_quality, gopher_repetition, near_duplicates
from bertjax.text.filters.filter import Filter
from bertjax.text.sources.registry import KINDS, parse_sources

_ALL = (gopher_quality.FILTER, gopher_repetition.FILTER, exact_duplicates.FILTER, near_duplicates.FILTER)
FILTERS = Registry("filters", {one.name: one for one in _ALL}, Filter)


def choose(names: Sequence[str]) -> list[Filter]:
    """The filters of `data.filters` in order.

    Raises ValueError for an unknown name, one that is named twice, and a missing library.
    """
    for name in names:
        if name not in FILTERS:
            near = difflib.get_close_matches(name, FILTERS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(FILTERS)}"
            raise ValueError(f"data.filters={tuple(names)}: {name!r} is unknown; {hint}")
    if len({*names}) < len(names):
        raise ValueError(f"data.filters={tuple(names)} names a filter twice; leave one out")
    chosen = [FILTERS[name] for name in names]
    for one in chosen:
        if one.needs:
            try:
                require_package(*one.needs, f"data.filters={one.name!r}")
            except ModuleNotFoundError as error:
                raise ValueError(str(error)) from None
    return chosen


def require_filters(data: DataConfig) -> None:
    """Raise ValueError like `choose`, and for a filter of prose with a source of other records."""
    prose = [one.name for one in choose(data.filters) if one.for_prose]
    others = [str(source) for source in parse_sources(data.sources) if KINDS[source.kind].is_sequence]
    if prose and others:
        raise ValueError(
            f"data.filters={prose[0]!r} is for prose, and source {others[0]} has other records; leave the filter out"
        )


def filters_fingerprint(names: Sequence[str]) -> list[list[Any]]:
    """The filters as JSON, with the versions of their rules and libraries."""
    return [
        [one.name, one.version, *([importlib.metadata.version(one.needs[0])] if one.needs else [])]
        for one in choose(names)
    ]
