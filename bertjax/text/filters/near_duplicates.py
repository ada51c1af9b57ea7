"""The `near_duplicates` filter: of documents that share most runs of five words, one stays.

Uses datasketch's MinHash with the parameters of FineWeb (Penedo et al. 2024, arXiv:2406.17557): 112 minima in 14 bands
of 8. Documents that agree in a band are copies, which finds 5 % of the pairs whose sets of runs have a Jaccard
similarity of 0.5, 56 % at 0.7, 92 % at 0.8, 99.96 % at 0.9. Case and punctuation do not count; in scripts without
spaces a word is a character.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import cache
from typing import Any

import numpy as np

from bertjax.text.filters.filter import Filter
from bertjax.text.units import WORD

_RUN = 5  # words
_BANDS, _MINIMA = 14, 8  # of a band
_AT_ONCE = 1 << 12  # runs; each takes the memory of 112 numbers
_WORD = re.compile(WORD)
# A run's hash is the upper half of the sum of its words' hashes times odd factors (multilinear hashing).
_FACTORS = np.frombuffer(hashlib.sha512(b"run of words").digest()[: 8 * _RUN], "<u8").astype(np.uint64) | np.uint64(1)


class _MinHash:
    def __init__(self) -> None:
        self._minima = _empty().copy()
        self._last: list[int] = []  # hashes of up to four words, whose runs continue in the next part
        self._has_run = False

    def add(self, text: str) -> None:
        words = np.array([*self._last, *(zlib.crc32(word.encode()) for word in _WORD.findall(text.lower()))], np.uint64)
        self._last = words[-(_RUN - 1) :].tolist()
        self._add_runs(words)

    def values(self) -> np.ndarray:
        if not self._has_run and self._last:  # a shorter document is one run
            self._add_runs(np.array([*self._last, *[0] * _RUN][:_RUN], np.uint64))
        if not self._has_run:
            return np.zeros(_BANDS, np.uint64)
        bands = self._minima.hashvalues.astype("<u4").reshape(_BANDS, _MINIMA)
        digests = b"".join(hashlib.blake2b(band.tobytes(), digest_size=8).digest() for band in bands)
        return np.frombuffer(digests, "<u8").astype(np.uint64)

    def _add_runs(self, words: np.ndarray) -> None:
        for start in range(0, len(words) - _RUN + 1, _AT_ONCE):
            part = words[start : start + _AT_ONCE + _RUN - 1]
            hashes = np.lib.stride_tricks.sliding_window_view(part, _RUN) @ _FACTORS
            self._minima.update_batch(np.unique(hashes >> np.uint64(32)).tolist())
            self._has_run = True


@cache
def _empty() -> Any:
    from datasketch import MinHash  # pyright: ignore[reportMissingImports]

    return MinHash(_BANDS * _MINIMA, seed=1, hashfunc=int)


FILTER = Filter(
    "near_duplicates",
    ("near copies of an earlier document",),
    signature=_MinHash,
    columns=_BANDS,
    needs=("datasketch", "'bertjax[duplicates]'"),
)
