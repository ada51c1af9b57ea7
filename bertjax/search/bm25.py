"""BM25 ranking, in the variant of Lucene.

score(q, d) = sum over terms t of q of idf(t) * tf / (tf + k1 * (1 - b + b * |d| / mean |d|)), where d has t tf times
and idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)) for the df of the N documents that have t. Source: Kamphuis, de Vries,
Boytsov and Lin, "Which BM25 Do You Mean?" (ECIR 2020), "Lucene (accurate)", without the constant factor k1 + 1, which
Lucene left out in version 8. k1 and b are Lucene's defaults. A term is a token of the model's vocabulary, so that any
language has terms that its tokenizer can read. Postings lie in files, sorted by term.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.search.rankings import Hits, best
from bertjax.search.records import ascend_from_0

K1, B = 1.2, 0.75
OFFSETS, DOCUMENTS, WEIGHTS = "bm25.offsets.npy", "bm25.documents.npy", "bm25.weights.npy"

_HELD_TOKENS = 1 << 21  # tokens of documents whose postings are sorted in memory together


class Bm25:
    """The postings of an index. `offsets` int64 [terms + 1]: where each term's `documents` and `weights` begin."""

    def __init__(self, folder: Path, count: int) -> None:
        """Map the files of a folder about `count` documents."""
        self._offsets = np.load(folder / OFFSETS)
        self._documents = np.load(folder / DOCUMENTS, mmap_mode="r")
        self._weights = np.load(folder / WEIGHTS, mmap_mode="r")
        self._count = count

    @property
    def are_sound(self) -> bool:
        """Whether the offsets are within the postings, and the postings are of documents."""
        are_postings = self._documents.dtype == np.int32 and self._weights.dtype == np.float32
        if not are_postings or self._documents.ndim != 1 or self._documents.shape != self._weights.shape:
            return False
        used = self._documents[: self._offsets[-1]] if ascend_from_0(self._offsets) else None
        return used is not None and len(used) == self._offsets[-1] and bool(((used >= 0) & (used < self._count)).all())

    def search(self, terms: np.ndarray, top: int) -> Hits:
        """The `top` best documents among those that have a term of the query, int [terms], repeated or not."""
        scores = np.zeros(self._count, np.float32)
        for term in terms.tolist():
            postings = slice(*self._offsets[term : term + 2])
            scores[self._documents[postings]] += self._weights[postings]
        found = np.flatnonzero(scores)
        return best(found, scores[found], top)


class _Part(NamedTuple):
    """Postings of successive documents, sorted by term and document."""

    sizes: np.ndarray  # int64 [terms]: postings of each term
    documents: np.ndarray  # int32 [postings]
    frequencies: np.ndarray  # int32 [postings]


class PostingsWriter:
    """Writes postings from the terms of successive documents; memory grows by 4 bytes per document."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._folder, self._vocab_size = folder, vocab_size
        self._lengths = array("i")
        self._held: list[np.ndarray] = []
        self._held_tokens = self._parts = 0

    def add(self, terms: np.ndarray) -> None:
        """Add the next document's terms, int [terms]."""
        self._held.append(terms)
        self._lengths.append(len(terms))
        self._held_tokens += len(terms)
        if self._held_tokens >= _HELD_TOKENS:
            self._write_part()

    def finish(self) -> None:
        """Write the files that `Bm25` reads."""
        self._write_part()
        sizes = sum((np.load(self._part(number, "sizes")) for number in range(self._parts)), np.zeros(1, np.int64))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        np.save(self._folder / OFFSETS, offsets)
        count = max(int(offsets[-1]), 1)  # an empty file cannot be mapped
        documents = np.lib.format.open_memmap(self._folder / DOCUMENTS, "w+", np.int32, (count,))
        weights = np.lib.format.open_memmap(self._folder / WEIGHTS, "w+", np.float32, (count,))
        for indices, terms, part in self._with_indices(offsets):
            documents[indices] = part.documents
            weights[indices] = self._weights(part, sizes[terms])
        documents.flush(), weights.flush()
        for path in self._folder.glob(".part-*"):
            path.unlink()

    def _weights(self, part: _Part, document_frequencies: np.ndarray) -> np.ndarray:
        lengths = np.frombuffer(self._lengths, np.int32)
        filled = np.count_nonzero(lengths)  # Lucene does not count documents without a term
        idf = np.log1p((filled - document_frequencies + 0.5) / (document_frequencies + 0.5))
        relative = lengths[part.documents] * (filled / max(lengths.sum(dtype=np.int64), 1))
        return idf * part.frequencies / (part.frequencies + K1 * (1 - B + B * relative))

    def _with_indices(self, offsets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, _Part]]:
        """Each part with the indices of its postings among all, after those of earlier parts, and their terms."""
        free = offsets[:-1].copy()
        for number in range(self._parts):
            part = _Part(*(np.load(self._part(number, name)) for name in _Part._fields))
            terms = np.repeat(np.arange(len(part.sizes)), part.sizes)
            begins = np.cumsum(part.sizes) - part.sizes
            yield np.arange(len(terms)) + (free - begins)[terms], terms, part
            free += part.sizes

    def _write_part(self) -> None:
        first = len(self._lengths) - len(self._held)
        owners = np.repeat(np.arange(len(self._held)), [len(terms) for terms in self._held])
        terms = np.concatenate([*self._held, np.empty(0, np.int64)]).astype(np.int64)
        pairs, frequencies = np.unique(terms * max(len(self._held), 1) + owners, return_counts=True)
        terms, owners = np.divmod(pairs, max(len(self._held), 1))
        part = _Part(
            np.bincount(terms, minlength=self._vocab_size),
            (first + owners).astype(np.int32),
            frequencies.astype(np.int32),
        )
        for name, values in part._asdict().items():
            np.save(self._part(self._parts, name), values)
        self._held, self._held_tokens, self._parts = [], 0, self._parts + 1

    def _part(self, number: int, name: str) -> Path:
        return self._folder / f".part-{number}.{name}.npy"
