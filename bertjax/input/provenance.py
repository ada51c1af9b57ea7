"""Where the rows of a run come from: source and document of each segment, or file and record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.input.batches import PairBatches
from bertjax.input.feed import Batches
from bertjax.input.layout import Split
from bertjax.input.tfrecords.batches import RecordBatches
from bertjax.text.store.format import SplitView

_SEGMENTS = "AB"


def origins(batches: Batches, numbers: np.ndarray, sources: Sequence[str]) -> list[list[str]]:
    """Of each row of a run by its number, int64 [n]: its segments' origins, or its record's; for people.

    `sources` are the names of `data.sources`. Documents and sentences are counted from 0 over the training split.
    """
    if isinstance(batches, RecordBatches):
        return [[name] for name in batches.names(numbers)]
    assert isinstance(batches, PairBatches), "rows are made of text or of records"
    pairs, split = batches.pairs(numbers), batches.split
    documents = np.searchsorted(split.document_offsets, pairs.first, side="right") - 1
    last = np.searchsorted(split.document_offsets, pairs.first + pairs.count - 1, side="right") - 1
    found: list[list[str]] = [[] for _ in range(len(numbers))]
    several = pairs.first.shape[1] > 1
    homes = _homes(split, documents, sources)
    for pair, row in enumerate(pairs.row.tolist()):
        for segment in range(pairs.first.shape[1]):
            at = pair, segment
            begin, end = int(pairs.first[at]), int(pairs.first[at] + pairs.count[at]) - 1
            which = f"document {documents[at]:,}" + (f" to {last[at]:,}" if last[at] != documents[at] else "")
            origin = f"{homes[pair][segment]}{which}, sentences {begin:,} to {end:,}"
            found[row].append(f"{_SEGMENTS[segment]}: {origin}" if several else origin)
    return found


def _homes(split: Split, documents: np.ndarray, sources: Sequence[str]) -> list[list[str]]:
    """The name of each document's source, if the store records it."""
    if not isinstance(split, SplitView) or not split.has_sources:
        return [[""] * documents.shape[1]] * len(documents)
    home = np.searchsorted(split.source_edges, documents, side="right") - 1
    return [[f"{sources[number]}, " for number in row] for row in home.tolist()]
