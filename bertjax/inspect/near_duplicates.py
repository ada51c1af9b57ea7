"""Exact and near duplicates; near ones by MinHash over runs of five tokens, with banded locality-sensitive hashing.

The share of 128 minima in which two documents agree estimates the Jaccard similarity of their sets of runs, with a
standard error of 3.5 points at 0.8 (Broder 1997). Documents that agree in all four minima of one of 32 bands are
compared: a pair of similarity 0.8 is missed once in ten million times, one of 0.3 is compared in one case of four.
Hand-written: datasketch, which hashes each run in Python, takes nine times as long.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bertjax.input.randomness import derive_key, hash64, uniform
from bertjax.inspect.corpus_figures import Count
from bertjax.inspect.stretches import stretches, token_ranges
from bertjax.text.ragged import range_indices
from bertjax.text.store.format import SplitView

MOST_EXACT = 1 << 25  # documents; 24 bytes of memory each; a larger split is sampled
SHINGLE = 5
HASHES = 128
BANDS = 32
SIMILAR = 0.8
MOST_DOCUMENTS = 1 << 20  # half a kilobyte of memory each
MOST_TOKENS = 1 << 28
NEIGHBOURS = 16  # comparisons per document in a large bucket, to keep memory linear

_FACTORS = (hash64(derive_key("minhash"), np.arange(HASHES)) >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
_STRETCH_TOKENS = 1 << 16
_PAIRS_AT_ONCE = 1 << 14


@dataclass(frozen=True)
class Duplicates:
    """Exact duplicates of a split."""

    share: float  # of the documents compared; chosen by content, so that all copies of a document are in or all out
    documents: int  # compared
    groups: int  # sets of two or more equal documents
    copies: np.ndarray  # int64, ascending: all documents beyond the first of each group
    copied_tokens: int  # in `copies`
    largest: tuple[tuple[int, int], ...]  # (first document, size) of the largest groups


def find_duplicates(split: SplitView, count: Count, examples: int, most_documents: int = MOST_EXACT) -> Duplicates:
    """Compare documents by a 128-bit hash of their token ids, regardless of their sentence ends.

    Of more than `most_documents` documents, those with the smallest hashes are compared.
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
    """Hash the documents of the share: numbers int64, and both halves of the hashes, uint64."""
    numbers, digests = [np.zeros(0, np.int64)], [np.zeros((0, 2), np.uint64)]
    for stretch in stretches(split):
        content = np.ascontiguousarray(stretch.ids).data.cast("B")
        edges = np.concatenate([[0], np.cumsum(stretch.lengths)]) * stretch.ids.itemsize
        hashed = b"".join(
            hashlib.blake2b(content[start:stop], digest_size=16).digest()
            for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        )
        hashes = np.frombuffer(hashed, np.uint64).reshape(-1, 2)
        is_compared = (hashes[:, 0] >> np.uint64(11)) * 2.0**-53 < share
        numbers.append(stretch.documents[is_compared])
        digests.append(hashes[is_compared])
        count(len(stretch.ids))
    joined = np.concatenate(digests)
    return np.concatenate(numbers), joined[:, 0], joined[:, 1]


@dataclass(frozen=True)
class NearPair:
    """Two documents, by their numbers in the split."""

    first: int
    second: int
    similarity: float  # estimated
    group: int  # documents in their group


@dataclass(frozen=True)
class NearDuplicates:
    """Near duplicates of a split, exact copies left out."""

    share: float  # of the documents compared, drawn at random; a pair is found only if both are
    documents: int  # compared
    pairs: int  # found, of an estimated similarity of at least SIMILAR
    groups: int  # documents linked by such pairs
    copies: int  # documents beyond the first of each group
    copied_tokens: int  # in those
    examples: tuple[NearPair, ...]  # one of each of the largest groups


def find_near_duplicates(
    split: SplitView,
    vocab_size: int,
    leave_out: np.ndarray,
    count: Count,
    examples: int,
) -> NearDuplicates:
    """Compare all documents except `leave_out`, int64, and those shorter than SHINGLE tokens.

    Of a split above the limits of documents or tokens, a random share is compared, the same in every run.
    """
    share = min(1.0, MOST_DOCUMENTS / max(split.num_documents, 1), MOST_TOKENS / max(split.num_tokens, 1))
    numbers = np.arange(split.num_documents)
    is_compared = uniform(hash64(derive_key("near duplicates"), numbers)) < share
    is_compared[leave_out] = False
    lengths = token_ranges(split, numbers)[1]
    chosen = numbers[is_compared & (lengths >= SHINGLE)]
    pairs, similarity = similar_pairs(signatures(split, chosen, vocab_size, count))
    # The least member of each document's connected component
    links = coo_array((np.ones(len(pairs), bool), tuple(pairs.T)), shape=(len(chosen), len(chosen)))
    _, component = connected_components(links, directed=False)
    group = np.unique(component, return_index=True)[1][component]
    sizes = np.bincount(group, minlength=len(chosen))
    is_copy = group != np.arange(len(chosen))
    largest = [g for g in np.argsort(-sizes, kind="stable")[:examples].tolist() if sizes[g] > 1]
    example_pairs = [(int(np.argmax(group[pairs[:, 0]] == g)), int(sizes[g])) for g in largest]
    return NearDuplicates(
        share=share,
        documents=len(chosen),
        pairs=len(pairs),
        groups=int(np.count_nonzero(sizes > 1)),
        copies=int(np.count_nonzero(is_copy)),
        copied_tokens=int(lengths[chosen[is_copy]].sum()),
        examples=tuple(
            NearPair(int(chosen[pairs[p, 0]]), int(chosen[pairs[p, 1]]), float(similarity[p]), size)
            for p, size in example_pairs
        ),
    )


def signatures(split: SplitView, documents: np.ndarray, vocab_size: int, count: Count) -> np.ndarray:
    """The minima of documents of at least SHINGLE tokens, uint32 [documents, HASHES]."""
    shingles = NGrams(SHINGLE, vocab_size)
    out = np.empty((len(documents), HASHES), np.uint32)
    done = 0
    for stretch in stretches(split, documents, _STRETCH_TOKENS):
        hashes, counts = shingles(stretch.ids, stretch.lengths)
        drawn = (hashes >> np.uint64(32)).astype(np.uint32)
        starts, permuted = np.cumsum(counts) - counts, np.empty_like(drawn)
        minima = np.empty((HASHES, len(counts)), np.uint32)
        # The values are already random; an odd factor permutes them.
        for factor, row in zip(_FACTORS, minima, strict=True):
            np.multiply(drawn, factor, out=permuted)
            np.minimum.reduceat(permuted, starts, out=row)
        out[done : done + len(counts)] = minima.T
        done += len(counts)
        count(len(stretch.ids))
    return out


def similar_pairs(minima: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find pairs of rows of uint32 [n, HASHES] that agree in SIMILAR or more: int64 [pairs, 2], and the shares.

    All pairs within a bucket are compared; in a bucket of more than NEIGHBOURS + 1, only rows near each other.
    """
    number = len(minima)
    pairs_found = np.zeros(0, np.int64)  # first * number + second, ascending
    for band in np.split(minima, BANDS, axis=1):
        halves = np.ascontiguousarray(band).view(np.uint64)
        bucket = hash64(hash64(derive_key("band"), halves[:, 0]), halves[:, 1])
        order = np.argsort(bucket, kind="stable")
        bucket, parts = bucket[order], [pairs_found]
        for distance in range(1, NEIGHBOURS + 1):
            index = np.flatnonzero(bucket[distance:] == bucket[:-distance])
            if not len(index):
                break
            pairs = order[index] * number + order[index + distance]
            # `np.isin` would sort the ascending array again.
            is_known = np.append(pairs_found, -1)[np.searchsorted(pairs_found, pairs)] == pairs
            pairs = pairs[~is_known]
            parts.append(pairs[_agreement(minima, pairs // number, pairs % number) >= SIMILAR])
        pairs_found = np.unique(np.concatenate(parts))
    first, second = pairs_found // max(number, 1), pairs_found % max(number, 1)
    return np.stack([first, second], axis=1), _agreement(minima, first, second)


def _agreement(minima: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The share of equal minima of rows `first` and `second`, float64 [pairs]."""
    out = np.empty(len(first))
    for start in range(0, len(first), _PAIRS_AT_ONCE):
        here = slice(start, start + _PAIRS_AT_ONCE)
        agree = minima[first[here]] == minima[second[here]]
        # Add eight bytes at once: 16 words with at most 1 in each byte, then the bytes of their sum.
        counts = agree.view(np.uint64).sum(axis=1) * np.uint64(0x0101010101010101) >> np.uint64(56)
        out[here] = counts / HASHES
    return out


class NGrams:
    """Hashes every run of `n` tokens to 64 bits; equal runs have equal hashes."""

    def __init__(self, n: int, vocab_size: int) -> None:
        self.n = n
        self._token_hashes = hash64(derive_key("n-gram token"), np.arange(vocab_size))
        self._factors = hash64(derive_key("n-gram place"), np.arange(n)) | np.uint64(1)

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Hash concatenated texts: the hashes, uint64 in order, and their number per text, int64 [texts].

        ids: any integers [tokens]. lengths: int64 [texts] in tokens; a text of fewer than n tokens has no run.
        """
        counts = np.maximum(lengths - (self.n - 1), 0)
        windows = len(ids) - (self.n - 1)
        if windows <= 0:
            return np.zeros(0, np.uint64), counts
        tokens = self._token_hashes[ids]
        hashes = tokens[:windows] * self._factors[0]
        for number in range(1, self.n):
            hashes += tokens[number : number + windows] * self._factors[number]
        return hashes[range_indices(np.cumsum(lengths) - lengths, counts)], counts
