"""The `exact_duplicates` filter: of documents with the same words, regardless of case and white space, one stays."""

from __future__ import annotations

import hashlib
import unicodedata

import numpy as np

from bertjax.text.filters.filter import Filter


class _Digest:
    """64 bits of the words: among 2 billion documents, 0.1 pairs that differ are expected to have the same."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, text: str) -> None:
        for word in unicodedata.normalize("NFC", text).lower().split():
            self._hash.update(word.encode() + b" ")

    def values(self) -> np.ndarray:
        return np.frombuffer(self._hash.digest(), "<u8").astype(np.uint64)


FILTER = Filter("exact_duplicates", ("copies of an earlier document",), signature=_Digest, columns=1)
