"""Rows of running text, without pairs: as many whole sentences as a row holds (RoBERTa, section 4.2).

`doc_sentences` rows end with their document. `full_sentences` rows continue with the next one after a [SEP].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.input.mixture import Reading
from bertjax.input.plan import LONGEST_WALK, even_pieces
from bertjax.input.randomness import below, derive_key, hash64


@dataclass(frozen=True)
class SentencePlan:
    """The rows of one epoch, in no particular order: `count` sentences from sentence `start` on."""

    start: np.ndarray  # int32 [N], int64 where the split has 2**31 sentences or more
    count: np.ndarray  # uint16 [N]

    def __len__(self) -> int:
        return len(self.start)

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `EpochPlan.spans`, with one range of sentences instead of A and B: int64 [n, 1] twice, and bool [n]."""
        first, count = self.start[rows, None].astype(np.int64), self.count[rows, None].astype(np.int64)
        return first, count, np.zeros(len(rows), bool)


def build_sentence_plan(
    documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int, crossing: bool, seed: int, epoch: int
) -> SentencePlan:
    """Cut the text of an epoch into rows of `room` tokens, [CLS] and the last [SEP] not counted.

    A longer sentence has a row of its own, and is truncated there. With `crossing` a row may continue after the end of
    a document, which takes a token for a [SEP]; `reading` must then be every document once. The sentences with which
    such rows begin change from epoch to epoch.
    """
    begin, end = _stretches(documents, reading, crossing, derive_key(seed, "stretches", epoch))
    starts, counts = [], []
    while len(begin):
        stop = np.minimum(_reach(documents, sentences, begin, room, crossing), end)
        starts.append(begin)
        counts.append(stop - begin)
        unfinished = stop < end
        begin, end = stop[unfinished], end[unfinished]
    kind = np.int32 if len(sentences) <= 2**31 else np.int64
    return SentencePlan(np.concatenate(starts).astype(kind), np.concatenate(counts).astype(np.uint16))


def _stretches(documents: np.ndarray, reading: Reading, crossing: bool, key: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of sentences [begin, end) that are cut into rows in parallel."""
    if not crossing:
        _, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], LONGEST_WALK)
        return begin, end
    shift = int(below(hash64(key, np.zeros(1, np.int64)), LONGEST_WALK)[0])
    edges = np.arange(-shift, int(documents[-1]), LONGEST_WALK)
    edges = np.unique(np.append(np.maximum(edges, 0), documents[-1]))
    return edges[:-1], edges[1:]


def _reach(documents: np.ndarray, sentences: np.ndarray, begin: np.ndarray, room: int, crossing: bool) -> np.ndarray:
    """One past the last sentence of the row that begins with each sentence: int64 [n], at least one further on."""
    home = np.searchsorted(documents, begin, side="right")
    left = np.full(len(begin), room)
    while True:
        limit = (sentences[begin] + left).astype(sentences.dtype, copy=False)
        stop = np.maximum(np.searchsorted(sentences, limit, side="right") - 1, begin + 1)
        if not crossing:
            return stop
        # Each document that ends inside takes a [SEP] from the text; what then fits may hold fewer ends again.
        ends = np.searchsorted(documents, stop, side="left") - home
        taken = sentences[stop] - sentences[begin] + ends
        over = (taken > room) & (stop > begin + 1)
        if not over.any():
            return stop
        left[over] -= np.maximum(taken - room, 1)[over]
