"""The `exact_duplicates` filter: of documents with the same words, regardless of case and white space, one stays."""

from __future__ import annotations

import hashlib
import unicodedata

import numpy as np

from bertjax.text.filters.filter import Filter


class _Digest:
    """A 64-bit digest of the words: among 2 billion different documents, 0.1 collisions are expected."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, text: str) -> None:
        for word in unicodedata.normalize("NFC", text).lower().split():
            self._hash.update(word.encode() + b" ")

    def values(self) -> np.ndarray:
        return np.frombuffer(self._hash.digest(), "<u8").astype(np.uint64)


FILTER = Filter("exact_duplicates", ("copies of an earlier document",), signature=_Digest, columns=1)
