"""Encode sequences with tables of letters, a hundred times as fast as the artefact; also as overlapping k-mers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.tokenization.chunks import SEPARATOR

SPACES = " \t\n\r\x0b\x0c"  # removed from sequences


class LetterEncoder:
    """Encodes sentences like `ChunkEncoder`, for an artefact that splits text into letters."""

    def __init__(self, ids: Mapping[str, int], unknown: int) -> None:
        """`ids` maps letters to ids; any other letter gets the id `unknown`."""
        self._ids = np.full(max(map(ord, (*ids, *SPACES))) + 2, unknown, np.uint32)  # last entry: all other characters
        self._is_letter = np.ones(len(self._ids), bool)
        for letter, number in ids.items():
            self._ids[ord(letter)] = number
        for space in (*SPACES, SEPARATOR):
            self._is_letter[ord(space)] = False

    def encode(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences: (ids uint32 [tokens], lengths int64 [sentences]); `before` may hold spaces.

        Raises ValueError for a lone surrogate.
        """
        del before
        points = self._points("".join(sentences))
        sizes = np.fromiter(map(len, sentences), np.int64, len(sentences))
        is_letter = self._is_letter[points]
        ids = self._ids[points]
        if is_letter.all():
            return ids, sizes
        ends = np.concatenate([[0], np.cumsum(is_letter)])[np.concatenate([[0], np.cumsum(sizes)])]
        return ids[is_letter], np.diff(ends)

    def offsets(self, sentence: str, before: str | None = None) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2]."""
        del before
        places = np.flatnonzero(self._is_letter[self._points(sentence)])
        return np.stack([places, places + 1], axis=1)

    def _points(self, text: str) -> np.ndarray:
        """The index of each character in the table."""
        if text.isascii():
            points = np.frombuffer(text.encode(), np.uint8)
            return points if len(self._ids) > 128 else np.minimum(points, len(self._ids) - 1)
        try:
            points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        except UnicodeEncodeError as error:
            broken = text[max(error.start - 20, 0) : error.start + 20]
            raise ValueError(
                f"text has a lone surrogate, in {broken!r}; it is not valid Unicode; correct the source"
            ) from None
        return np.minimum(points, len(self._ids) - 1)


class OverlappingEncoder:
    """Encodes sentences like `ChunkEncoder`, as overlapping k-mers: one for each letter but the last k - 1.

    A k-mer with an unknown letter becomes the unknown token, and so does a sentence of fewer than k letters.
    """

    def __init__(self, ids: Mapping[str, int], unknown: int, letters: str, size: int) -> None:
        """`ids` maps all k-mers of `letters`, each of `size` letters, to ids."""
        self._size, self._unknown, self._base = size, unknown, len(letters)
        self._digits = LetterEncoder({letter: number for number, letter in enumerate(letters)}, len(letters))
        kmers = itertools.product(letters, repeat=size)
        self._ids = np.array([ids["".join(kmer)] for kmer in kmers], np.uint32)

    def encode(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences: (ids uint32 [tokens], lengths int64 [sentences]); `before` may hold spaces."""
        digits, sizes = self._digits.encode(sentences, before)
        lengths = np.where(sizes > 0, np.maximum(sizes - self._size + 1, 1), 0)
        padded = np.concatenate([digits, np.full(self._size, self._base, np.uint32)])
        place = np.zeros(len(digits), np.int64)
        is_known = np.ones(len(digits), bool)
        for shift in range(self._size):
            digit = padded[shift : shift + len(digits)]
            place = place * self._base + np.minimum(digit, self._base - 1)
            is_known &= digit < self._base
        remaining = np.repeat(np.cumsum(sizes), sizes) - np.arange(len(digits))  # letters to the end of the sentence
        first = np.repeat(sizes, sizes) == remaining
        is_start = (remaining >= self._size) | first
        is_known &= remaining >= self._size
        return np.where(is_known, self._ids[place], np.uint32(self._unknown))[is_start], lengths

    def offsets(self, sentence: str, before: str | None = None) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2]."""
        places = self._digits.offsets(sentence, before)[:, 0]
        ends = places[min(self._size, len(places)) - 1 :] + 1
        return np.stack([places[: len(ends)], ends], axis=1)
