"""Provenance of a run's rows: source, document and sentences of each segment, or file and record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.input.batches import RowBatches
from bertjax.input.feed import Batches
from bertjax.input.lanes import LaneBatches
from bertjax.input.layout import TextView
from bertjax.input.tfrecords.batches import RecordBatches
from bertjax.text.store.format import SplitView

_SEGMENTS = "AB"


def origins(batches: Batches, numbers: np.ndarray, sources: Sequence[str]) -> list[list[str]]:
    """Describe the origin of each segment, or of the record, for rows of a run by number, int64 [n].

    `sources` are the names of the mixed sources, if the run has any. Documents and sentences are counted from 0 over
    the training split.
    """
    if isinstance(batches, RecordBatches):
        return [[name] for name in batches.names(numbers)]
    assert isinstance(batches, RowBatches | LaneBatches), "rows are from text or from records"
    row_origins: list[list[str]] = [[] for _ in range(len(numbers))]
    for rows, text, pairs in batches.texts(numbers):
        first_document, first_sentence = _places(batches.split, text, pairs.first)
        last_document, last_sentence = _places(batches.split, text, pairs.first + pairs.count - 1)
        several = pairs.first.shape[1] > 1
        homes = _homes(batches.split, first_document, sources)
        for pair, row in enumerate(rows[pairs.row].tolist()):
            for segment in range(pairs.first.shape[1]):
                at = pair, segment
                document, last = first_document[at], last_document[at]
                which = f"document {document:,}" + (f" to {last:,}" if last != document else "")
                sentences = f"sentences {first_sentence[at]:,} to {last_sentence[at]:,}"
                origin = f"{homes[pair][segment]}{which}, {sentences}"
                row_origins[row].append(f"{_SEGMENTS[segment]}: {origin}" if several else origin)
    return row_origins


def _places(split: TextView, text: TextView, sentences: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map sentences of a text, int64 [n, k], to their documents and sentences in the whole split, int64 [n, k]."""
    documents = np.searchsorted(text.document_offsets, sentences, side="right") - 1
    if text is split:
        return documents, sentences
    assert isinstance(text, SplitView)
    return text.place_in_split(documents, sentences)


def _homes(split: TextView, documents: np.ndarray, sources: Sequence[str]) -> list[list[str]]:
    """The name of each document's source, if the store records it."""
    if not isinstance(split, SplitView) or not split.has_sources or not sources:
        return [[""] * documents.shape[1]] * len(documents)
    home = np.searchsorted(split.source_edges, documents, side="right") - 1
    return [[f"{sources[number]}, " for number in row] for row in home.tolist()]
