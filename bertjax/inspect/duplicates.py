"""Exact duplicates: documents of a split that are equal token for token."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from bertjax.inspect.corpus_figures import Count
from bertjax.inspect.stretches import stretches, token_ranges
from bertjax.text.store.format import SplitView

MOST_DOCUMENTS = 1 << 25  # kept in memory by 24 bytes each; a larger split is sampled


@dataclass(frozen=True)
class Duplicates:
    """Documents of a split that equal another one."""

    share: float  # of the documents compared; chosen by content, so that all copies of a document are in or out
    documents: int  # compared
    groups: int  # sets of two or more equal documents
    copies: np.ndarray  # int64, ascending: the numbers of all but the first of each group
    copied_tokens: int  # in `copies`
    largest: tuple[tuple[int, int], ...]  # of the largest groups: the first document and the size


def find_duplicates(split: SplitView, count: Count, examples: int, most_documents: int = MOST_DOCUMENTS) -> Duplicates:
    """Compare documents by a 128-bit hash of their token ids; where their sentences end makes no difference.

    A split of more than `most_documents` documents is represented by those with the smallest hashes.
    """
    share = min(1.0, most_documents / max(split.num_documents, 1))
    number, high, low = _digests(split, share, count)
    order = np.lexsort((number, low, high))
    number, high, low = number[order], high[order], low[order]
    is_copy = np.zeros(len(number), bool)
    is_copy[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    first = number[~is_copy]
    sizes = np.diff(np.flatnonzero(~is_copy), append=len(number))
    copies = np.sort(number[is_copy])
    largest = np.lexsort((first, -sizes))[:examples]
    return Duplicates(
        share=share,
        documents=len(number),
        groups=int(np.count_nonzero(sizes > 1)),
        copies=copies,
        copied_tokens=int(token_ranges(split, copies)[1].sum()),
        largest=tuple((int(first[g]), int(sizes[g])) for g in largest if sizes[g] > 1),
    )


def _digests(split: SplitView, share: float, count: Count) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the documents in the share: number int64 and the halves of the hash, uint64."""
    numbers, digests = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.uint64)]
    for stretch in stretches(split):
        content = memoryview(np.ascontiguousarray(stretch.ids)).cast("B")
        edges = np.concatenate([[0], np.cumsum(stretch.lengths)]) * stretch.ids.itemsize
        hashed = b"".join(
            hashlib.blake2b(content[start:stop], digest_size=16).digest()
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        )
        found = np.frombuffer(hashed, np.uint64).reshape(-1, 2)
        kept = (found[:, 0] >> np.uint64(11)) * 2.0**-53 < share
        numbers.append(stretch.documents[kept])
        digests.append(found[kept])
        count(len(stretch.ids))
    joined = np.concatenate(digests)
    return np.concatenate(numbers), joined[:, 0], joined[:, 1]
