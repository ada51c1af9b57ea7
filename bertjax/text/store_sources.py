"""Match `data.sources` with the sources of a token store, whose documents are numbered by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from bertjax.config import DataConfig
from bertjax.storage.terminal import first_names
from bertjax.text.sources.registry import parse_source

_LISTED = 8


def relative_names(sources: Sequence[str]) -> list[str]:
    """Names of sources without their common folder, so that they are the same on every machine."""
    split = [source.partition(":") for source in sources]
    paths = [pattern.split("/") for _, _, pattern in split]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda level: len({*level}) == 1, levels))
    return [f"{kind}{colon}{'/'.join(path[shared:])}" for (kind, colon, _), path in zip(split, paths, strict=True)]


def sources_are_named(stages: Sequence[DataConfig]) -> bool:
    """Whether a stage reads one store and chooses or weights its sources by the order of `data.sources`."""
    return any(
        len(data.store) == 1
        and bool(data.sources)
        and (bool(data.active_sources) or len(data.weights) == len(data.sources))
        for data in stages
    )


def require_store_sources(manifest: Mapping[str, Any], stages: Sequence[DataConfig]) -> None:
    """Raise ValueError if stages name other sources (`sources_are_named`) than a store has, or in another order.

    Compares the names without their common folder, because the text may have moved.
    """
    recorded = manifest["provenance"].get("source_names")
    if recorded is None or not sources_are_named(stages):
        return
    data = stages[0]
    names = relative_names([_normal(source) for source in data.sources])
    if names != recorded:
        raise ValueError(
            f"data.active_sources and data.weights refer to the sources of data.store={data.store[0]} by the order of "
            f"data.sources, but data.sources differ from the store's: data.sources has {len(names)} "
            f"({first_names(names, _LISTED)}), the store has {len(recorded)} ({first_names(recorded, _LISTED)}); list "
            "the store's sources in the same order"
        )


def _normal(source: str) -> str:
    """Normalise a source as manifests do; its text need not exist any more."""
    try:
        return str(parse_source(source))
    except ValueError:
        return source
