"""Encode sequences of single-letter tokens by a table: the ids of the artefact, a hundred times as fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.tokenization.chunks import SEPARATOR

SPACES = " \t\n\r\x0b\x0c"  # between letters, left out


class LetterEncoder:
    """Encodes sentences like `ChunkEncoder`, for an artefact that cuts text into letters."""

    def __init__(self, ids: Mapping[str, int], unknown: int) -> None:
        """`ids` are those of the letters; any other letter gets the id `unknown`."""
        self._ids = np.full(max(map(ord, (*ids, *SPACES))) + 2, unknown, np.uint32)  # the last is for all others
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
        kept = self._is_letter[points]
        ids = self._ids[points]
        if kept.all():
            return ids, sizes
        ends = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(sizes)])]
        return ids[kept], np.diff(ends)

    def offsets(self, sentence: str, before: str | None = None) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2]."""
        del before
        places = np.flatnonzero(self._is_letter[self._points(sentence)])
        return np.stack([places, places + 1], axis=1)

    def size(self, chunk: str) -> int:
        """The number of tokens of a text."""
        return len(self.encode([chunk])[0])

    def _points(self, text: str) -> np.ndarray:
        """The place of each character in the table."""
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
