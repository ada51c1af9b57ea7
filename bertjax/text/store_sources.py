"""The correspondence of `data.sources` with the sources of a token store, whose documents are numbered by source."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from bertjax.config import DataConfig
from bertjax.storage.terminal import first_names
from bertjax.text.sources.registry import KINDS, parse_source
from bertjax.text.sources.source import split_field

_LISTED = 8
_LISTED_FILES = 2


def relative_names(sources: Sequence[str]) -> list[str]:
    """The names of sources without the folder that all of them share, so that they are the same on every machine."""
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
    """Raise ValueError if stages name sources (`sources_are_named`) that are not those of a store, in their order.

    A source corresponds to that of a store if it is written alike, or has the kind and the file names of that one only.
    A store that does not record how its sources were written is compared by kinds and file names.
    """
    about = manifest["provenance"]
    if not sources_are_named(stages) or (recorded := about.get("sources")) is None:
        return
    data, written = stages[0], about.get("source_names")
    given = relative_names([_normal(source) for source in data.sources])
    if len(given) == len(recorded) and all(
        _corresponds(number, source, recorded, written) for number, source in enumerate(given)
    ):
        return
    raise ValueError(
        f"data.active_sources and data.weights choose sources of data.store={data.store[0]} by the order of "
        f"data.sources, which are not its sources in its order: data.sources has {len(given)} "
        f"({first_names(given, _LISTED)}), the store has {len(recorded)} "
        f"({first_names(written or map(_describe, recorded), _LISTED)}); give data.sources as the store has them"
    )


def _normal(source: str) -> str:
    """A source as the manifest of a store has it; the text need not exist any more."""
    try:
        return str(parse_source(source))
    except ValueError:
        return source


def _corresponds(
    number: int, source: str, recorded: Sequence[Mapping[str, Any]], written: Sequence[str] | None
) -> bool:
    if written is None:
        return _has_files(source, recorded[number])
    if source in written:
        return source == written[number]
    return [n for n, one in enumerate(recorded) if _has_files(source, one)] == [number]


def _has_files(source: str, recorded: Mapping[str, Any]) -> bool:
    """Whether a source may have these files, as far as its kind and the names of the files tell."""
    name, _, pattern = source.partition(":")
    kind = KINDS.get(name)
    if kind is None or kind.read is None:  # a folder, whose files have their own kinds
        return True
    if name != recorded.get("kind"):
        return False
    if kind.find is not None:
        return True
    glob = os.path.basename(split_field(pattern)[0] if kind.has_fields else pattern)
    is_folder = not set(glob) & set("*?[.")
    return is_folder or all(fnmatch.fnmatch(file, glob) for file, *_ in recorded.get("files", ()))


def _describe(recorded: Mapping[str, Any]) -> str:
    """A recorded source by its kind and the first of its files."""
    return f"{recorded.get('kind')}:{first_names((file for file, *_ in recorded.get('files', ())), _LISTED_FILES)}"
