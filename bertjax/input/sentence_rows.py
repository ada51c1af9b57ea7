"""Plan an epoch of running text: a row holds as many sentences as fit, or a whole document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Template
from bertjax.input.plan import LONGEST_WALK, Reading, even_pieces
from bertjax.input.randomness import below, derive_key, hash64
from bertjax.text.store.format import SplitView

_MOST_SENTENCES = 2**16 - 1  # per row, because plans count sentences in uint16
_SAMPLED_TOKENS = 1 << 26  # size of the sample for `notes_on_cuts`


@dataclass(frozen=True)
class SentencePlan:
    """The rows of one epoch, in no particular order: `count` sentences from sentence `start` on."""

    start: np.ndarray  # int32 [N], or int64 if the split has 2**31 sentences or more
    count: np.ndarray  # uint16 [N]

    def __len__(self) -> int:
        return len(self.start)

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `EpochPlan.spans`, with one range of sentences instead of A and B: int64 [n, 1] twice, and bool [n]."""
        first, count = self.start[rows, None].astype(np.int64), self.count[rows, None].astype(np.int64)
        return first, count, np.zeros(len(rows), bool)


def build_sentence_plan(
    documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int, crossing: bool, seed: int, epoch: int
) -> SentencePlan:
    """Cut the text of an epoch into rows of `room` tokens, not counting [CLS] and the last [SEP].

    A longer sentence gets its own row and is truncated. With `crossing`, a row may continue after the end of a
    document, which takes one token for a [SEP]; `reading` must then be each document once, and the rows' first
    sentences change from epoch to epoch.
    """
    begin, end = _stretches(documents, reading, crossing, derive_key(seed, "stretches", epoch))

    def row_ends(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return np.minimum(_row_ends(documents, sentences, begin, room, crossing), end)

    return cut_ranges(begin, end, row_ends, len(sentences))


def cut_ranges(
    begin: np.ndarray, end: np.ndarray, first_ends: Callable[[np.ndarray, np.ndarray], np.ndarray], offsets: int
) -> SentencePlan:
    """Cut ranges of sentences [begin, end), int64 [n], into rows, advancing all ranges in parallel.

    `first_ends` returns the end of each range's first row; `offsets` is the number of sentence offsets.
    """
    starts, counts = [], []
    while len(begin):
        stop = first_ends(begin, end)
        starts.append(begin)
        counts.append(stop - begin)
        unfinished = stop < end
        begin, end = stop[unfinished], end[unfinished]
    kind = np.int32 if offsets <= 2**31 else np.int64
    return SentencePlan(np.concatenate(starts).astype(kind), np.concatenate(counts).astype(np.uint16))


def _stretches(documents: np.ndarray, reading: Reading, crossing: bool, key: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranges of sentences [begin, end) that are cut into rows in parallel."""
    if not crossing:
        _, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], LONGEST_WALK)
        return begin, end
    shift = int(below(hash64(key, np.zeros(1, np.int64)), LONGEST_WALK)[0])
    edges = np.arange(-shift, int(documents[-1]), LONGEST_WALK)
    edges = np.unique(np.append(np.maximum(edges, 0), documents[-1]))
    return edges[:-1], edges[1:]


def _row_ends(documents: np.ndarray, sentences: np.ndarray, begin: np.ndarray, room: int, crossing: bool) -> np.ndarray:
    """End (exclusive) of the row that begins with each sentence: int64 [n], at least one sentence further on."""
    home = np.searchsorted(documents, begin, side="right")
    remaining = np.full(len(begin), room)
    while True:
        limit = (sentences[begin] + remaining).astype(sentences.dtype, copy=False)
        stop = np.maximum(np.searchsorted(sentences, limit, side="right") - 1, begin + 1)
        if not crossing:
            return stop
        # Each document that ends inside the row takes a token for its [SEP]; a shorter row may then hold fewer ends.
        ends = np.searchsorted(documents, stop, side="left") - home
        size = sentences[stop] - sentences[begin] + ends
        over = (size > room) & (stop > begin + 1)
        if not over.any():
            return stop
        remaining[over] -= np.maximum(size - room, 1)[over]


def build_document_plan(documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int) -> SentencePlan:
    """Give each document that fits a row of `room` tokens, not counting [CLS] and [SEP].

    A longer document is cut at the ends of sentences into parts of about equal size, so that no part is a short
    remainder without context. A longer sentence gets its own row and is truncated.
    """
    _, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], _MOST_SENTENCES)

    def part_ends(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return _part_ends(sentences, begin, end, room)

    return cut_ranges(begin, end, part_ends, len(sentences))


def _part_ends(sentences: np.ndarray, begin: np.ndarray, end: np.ndarray, room: int) -> np.ndarray:
    """End of the first part of each range of sentences: int64 [n], at least one sentence further on."""
    tokens = sentences[end] - sentences[begin]
    parts = -(-tokens // room)
    target = (sentences[begin] - (-tokens // parts)).astype(sentences.dtype, copy=False)
    after = np.searchsorted(sentences, target, side="left")
    is_nearer = sentences[after] - target <= target - sentences[after - 1]
    limit = (sentences[begin] + room).astype(sentences.dtype, copy=False)
    furthest = np.searchsorted(sentences, limit, side="right") - 1
    return np.clip(np.where(is_nearer, after, after - 1), begin + 1, np.clip(furthest, begin + 1, end))


def notes_on_cuts(split: SplitView, stages: Sequence[DataConfig], template: Template) -> list[str]:
    """A line per row length of whole documents, on how many documents are longer; estimated for a large text."""
    lengths = dict.fromkeys(stage.sequence_length for stage in stages if stage.rows == "documents")
    if not lengths:
        return []
    sample = split.sample(_SAMPLED_TOKENS)
    scale, hedge = split.num_documents / max(sample.num_documents, 1), "" if sample is split else "about "
    offsets, sentences = sample.document_offsets, sample.sentence_offsets
    tokens = np.diff(sentences[offsets])
    notes = []
    for length in lengths:
        room = length - template.text_tokens
        cut = np.flatnonzero(tokens > room)
        reading = Reading(cut, np.zeros(len(cut), np.int64))
        parts = len(build_document_plan(offsets, sentences, reading, room=room)) if len(cut) else 0
        notes.append(
            f"rows of whole documents: {hedge}{round(len(cut) * scale):,} of {split.num_documents:,} documents of the "
            f"training split do not fit into {length:,} tokens"
            + (f" and are cut into {hedge}{round(parts * scale):,} parts at the ends of sentences" if len(cut) else "")
        )
    return notes
