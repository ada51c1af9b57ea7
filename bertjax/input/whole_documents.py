"""Rows of whole documents, for models of long rows; a document that is longer than a row is cut into even parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Template
from bertjax.input.plan import Reading, SentencePlan, cut_ranges, even_pieces

_MOST_SENTENCES = 2**16 - 1  # of a row, as plans count them


def build_document_plan(documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int) -> SentencePlan:
    """A row of `room` tokens, [CLS] and [SEP] not counted, for each document that fits.

    A longer document is cut at the ends of sentences into parts of about equally many tokens, so that no part is a
    short remainder without context. A longer sentence has a row of its own, and is truncated there.
    """
    _, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], _MOST_SENTENCES)

    def part_ends(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return _part_ends(sentences, begin, end, room)

    return cut_ranges(begin, end, part_ends, len(sentences))


def _part_ends(sentences: np.ndarray, begin: np.ndarray, end: np.ndarray, room: int) -> np.ndarray:
    """Where the first part of each range of sentences ends: int64 [n], at least one sentence further on."""
    tokens = sentences[end] - sentences[begin]
    parts = -(-tokens // room)
    wanted = (sentences[begin] - (-tokens // parts)).astype(sentences.dtype, copy=False)
    after = np.searchsorted(sentences, wanted, side="left")
    is_nearer = sentences[after] - wanted <= wanted - sentences[after - 1]
    limit = (sentences[begin] + room).astype(sentences.dtype, copy=False)
    furthest = np.searchsorted(sentences, limit, side="right") - 1
    return np.clip(np.where(is_nearer, after, after - 1), begin + 1, np.clip(furthest, begin + 1, end))


def notes_on_cuts(split: Split, stages: Sequence[DataConfig], template: Template) -> list[str]:
    """A line for each length of rows of whole documents, on the documents that are longer."""
    lengths = dict.fromkeys(stage.sequence_length for stage in stages if stage.rows == "documents")
    offsets, sentences = split.document_offsets, split.sentence_offsets
    tokens = np.diff(sentences[offsets])
    notes = []
    for length in lengths:
        room = length - template.of_text
        cut = np.flatnonzero(tokens > room)
        reading = Reading(cut, np.zeros(len(cut), np.int64))
        parts = len(build_document_plan(offsets, sentences, reading, room=room)) if len(cut) else 0
        notes.append(
            f"rows of whole documents: {len(cut):,} of {len(tokens):,} documents of the training split do not fit into "
            f"{length:,} tokens" + (f" and are cut into {parts:,} parts at the ends of sentences" if len(cut) else "")
        )
    return notes
