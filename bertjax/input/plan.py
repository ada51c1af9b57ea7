"""Plan an epoch of sentence pairs: which documents are read, and which sentences form a pair.

Pairs are formed as in google-research/bert.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from bertjax.input.randomness import below, derive_key, hash64, uniform
from bertjax.text.ragged import range_indices

# Sentences from which on a document is planned in several pieces at once. Each step of `build_plan` uses up at least a
# sentence of every piece, so this bounds the number of steps; a chunk ends early at the end of each piece.
LONGEST_WALK = 2048


@dataclass(frozen=True)
class Reading:
    """The documents of an epoch; each reading of a document has its own copy number."""

    document: np.ndarray  # int64 [n]: its number in the split
    copy: np.ndarray  # int64 [n]: 0 for the first time that the run reads it, then 1, 2, ...

    def __len__(self) -> int:
        return len(self.document)


def every_document(documents: int) -> Reading:
    """Read each document once."""
    return Reading(np.arange(documents), np.zeros(documents, np.int64))


@dataclass(frozen=True)
class EpochPlan:
    """The sentence pairs of one epoch, in no particular order; entry n of each array belongs to pair n.

    Before truncation, segment A is `a_count` sentences from sentence `a_start` on, and B is `b_count` from `b_start`.
    """

    a_start: np.ndarray  # int32 [N], or int64 if the split has 2**31 sentences or more
    a_count: np.ndarray  # uint16 [N]
    b_start: np.ndarray  # like a_start
    b_count: np.ndarray  # uint16 [N]
    is_random: np.ndarray  # bool [N]; B comes from another document

    def __len__(self) -> int:
        return len(self.a_start)

    def spans(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First sentence and sentence count of A and B, int64 [n, 2] both, and whether B is random, bool [n]."""
        first = np.stack([self.a_start[pairs], self.b_start[pairs]], axis=1).astype(np.int64)
        count = np.stack([self.a_count[pairs], self.b_count[pairs]], axis=1).astype(np.int64)
        return first, count, self.is_random[pairs]

    def tokens(self, sentences: np.ndarray, pairs: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Number of tokens in A and in B for some pairs; `sentences` are the split's sentence offsets."""
        sides = (self.a_start, self.a_count), (self.b_start, self.b_count)
        a, b = (
            sentences[start[pairs] + count[pairs].astype(np.int64)] - sentences[start[pairs]] for start, count in sides
        )
        return a, b


@dataclass
class _Walk:
    """The state of each document, or of each piece of a long one; all int64 [n]."""

    entry: np.ndarray  # its index in the epoch's reading
    shift: np.ndarray  # added to sentence numbers as counters of draws, so that each copy has its own draws
    position: np.ndarray  # first sentence that no pair has used yet
    end: np.ndarray  # one past its last sentence
    target: np.ndarray  # tokens that a chunk should reach

    def unfinished(self) -> _Walk:
        keep = self.position < self.end
        return self if keep.all() else _Walk(*(getattr(self, f.name)[keep] for f in fields(self)))


def build_plan(
    document_offsets: np.ndarray,
    sentence_offsets: np.ndarray,
    *,
    max_tokens: int,
    short_sequence_probability: float,
    seed: int,
    epoch: int,
    random_b: bool = True,
    reading: Reading | None = None,
    works: np.ndarray | None = None,
) -> EpochPlan:
    """Draw the sentence pairs of one epoch, advancing all documents by one chunk at a time. A pure function.

    Rule: create_instances_from_document of google-research/bert, create_pretraining_data.py; but the random document
    is drawn from the whole split and is always another document.

    `document_offsets`, int64[D + 1], counts sentences, `sentence_offsets`, int64[S + 1], counts tokens; no sentence and
    no document is empty, D >= 2. `max_tokens` limits A and B together. Without `random_b` only a chunk of one sentence
    gets a random B (google-research/albert, create_pretraining_data.py). `reading` has the documents of the epoch, at
    least two different ones; None means each document once. `works`, int64[D], is the work that each document is a part
    of: if the epoch has several works, a random B is from another work.
    """
    documents, sentences = np.asarray(document_offsets), np.asarray(sentence_offsets)
    assert len(documents) > 2 and 2 <= max_tokens < 2**16
    start_type = np.int32 if len(sentences) <= 2**31 else np.int64
    types = (start_type, np.uint16, start_type, np.uint16, np.bool_)
    keys = {purpose: derive_key(seed, purpose, epoch) for purpose in ("split", "coin", "document", "sentence")}
    reading = reading or every_document(len(documents) - 1)
    walk = _begin(documents, reading, max_tokens, short_sequence_probability, seed, epoch)
    others = _Others(reading.document, works)
    columns: list[list[np.ndarray]] = [[] for _ in types]
    while len(walk.position):
        fields = _advance(walk, others, documents, sentences, keys, random_b)
        for column, values, kind in zip(columns, fields, types, strict=True):
            column.append(values.astype(kind))
        walk = walk.unfinished()
    columns.reverse()  # each list of parts is freed as soon as it is joined
    return EpochPlan(*(np.concatenate(columns.pop()) for _ in types))


def _begin(
    documents: np.ndarray, reading: Reading, max_tokens: int, short_probability: float, seed: int, epoch: int
) -> _Walk:
    """Start a walk over every document, cutting long ones into even pieces, with its target length in this epoch."""
    number = reading.document + reading.copy * (len(documents) - 1)
    is_short = uniform(hash64(derive_key(seed, "short", epoch), number)) < short_probability
    short_target = 2 + below(hash64(derive_key(seed, "target", epoch), number), max_tokens - 1)
    target = np.where(is_short, short_target, max_tokens)
    entry, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], LONGEST_WALK)
    shift = reading.copy[entry] * int(documents[-1])
    return _Walk(entry, shift, begin, end, target[entry])


def even_pieces(first: np.ndarray, last: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut ranges [first, last) into even pieces of at most `longest`: owner, begin and end of each, int64 [n] each."""
    sizes = last - first
    pieces = -(-sizes // longest)
    owner = np.repeat(np.arange(len(first)), pieces)
    piece = range_indices(np.zeros_like(pieces), pieces)
    size, count, base = sizes[owner], pieces[owner], first[owner]
    return owner, base + size * piece // count, base + size * (piece + 1) // count


def _advance(
    walk: _Walk,
    others: _Others,
    documents: np.ndarray,
    sentences: np.ndarray,
    keys: dict[str, int],
    random_b: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Advance every document of the walk by one chunk; return the fields of the new pairs, in EpochPlan's order.

    Within a copy, a sentence starts at most one chunk, so its number is the counter of all the chunk's draws.
    """
    start, number = walk.position, walk.position + walk.shift
    chunk_end = np.minimum(_reach(sentences, start, walk.target), walk.end)
    in_chunk = chunk_end - start
    a_count = 1 + below(hash64(keys["split"], number), np.maximum(in_chunk - 1, 1))
    a_end = start + a_count
    is_random = in_chunk == 1
    if random_b:
        is_random |= hash64(keys["coin"], number) >> 63 == 1

    drawn = np.flatnonzero(is_random)
    other = others.draw(hash64(keys["document"], number[drawn]), walk.entry[drawn])
    by_place = np.argsort(other)  # look up in the split's order: 5 s instead of 11 for 10 million pairs
    drawn, other = drawn[by_place], other[by_place]
    first, last = documents[other], documents[other + 1]
    random_start = first + below(hash64(keys["sentence"], number[drawn]), last - first)
    room = walk.target[drawn] - (sentences[a_end[drawn]] - sentences[start[drawn]])
    b_start, b_end = a_end.copy(), chunk_end.copy()
    b_start[drawn] = random_start
    b_end[drawn] = np.minimum(_reach(sentences, random_start, np.maximum(room, 1)), last)

    walk.position = np.where(is_random, a_end, chunk_end)  # sentences that a random B displaced are read again
    return start, a_count, b_start, b_end - b_start, is_random


class _Others:
    """Draws the documents of random segments B."""

    def __init__(self, documents: np.ndarray, works: np.ndarray | None) -> None:
        """`documents`, int64[R], are the documents of the reading; `works` as in `build_plan`."""
        self._documents = documents
        self._works = works[documents] if works is not None and len(np.unique(works[documents])) > 1 else None
        if self._works is not None:
            self._order = np.argsort(self._works, kind="stable")
            self._sorted = self._works[self._order]

    def draw(self, bits: np.ndarray, entry: np.ndarray) -> np.ndarray:
        """Draw a document, int64[n], from uint64[n] bits; another document than `entry`'s, from another work."""
        if self._works is not None:
            first, last = (np.searchsorted(self._sorted, self._works[entry], side) for side in ("left", "right"))
            other = below(bits, len(self._documents) - (last - first))
            return self._documents[self._order[other + np.where(other >= first, last - first, 0)]]
        documents = self._documents
        other = below(bits, len(documents) - 1)
        other += other >= entry
        # Another copy of the same document could contain A's continuation: take the next different document.
        while (same := documents[other] == documents[entry]).any():
            other[same] = (other[same] + 1) % len(documents)
        return documents[other]


def _reach(sentences: np.ndarray, start: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """End (exclusive) of the shortest sequence of sentences from `start` on that has at least `tokens` tokens.

    The keys keep the dtype of the offsets; otherwise searchsorted would convert the whole array.
    """
    target = (sentences[start] + tokens).astype(sentences.dtype, copy=False)
    return np.searchsorted(sentences, target, side="left")
