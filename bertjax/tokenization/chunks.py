"""Text to ids by chunks: each is encoded once by `tokenizers`; text, being mostly known ones, is looked up.

So encoding is several times as fast as the library. It is exact where a chunk's ids do not depend on what stands around
it, which is for each kind of tokenizer to see to when it says where text may be cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import Tokenizer

SEPARATOR = "\0"  # every kind of tokenizer drops it from text, so it is free to stand between sentences

_BOUNDARY = 0xFFFFFFFF
_CACHED_CHUNKS = 1 << 19
_CACHED_CHARACTERS = 1 << 24  # of all chunks: where words are not spaced, a chunk is a sentence


class ChunkEncoder:
    """Sentences to ids with a tokenizer that adds nothing, cut by `pattern`, which finds SEPARATOR as a chunk too.

    `before` is put before each sentence. One in which `whole` is found then is not cut: the tokenizer gets it as it is.
    """

    def __init__(
        self, tokenizer: Tokenizer, pattern: re.Pattern[str], whole: re.Pattern[str] | None = None, before: str = ""
    ) -> None:
        self._tokenizer = tokenizer
        self._pattern = pattern
        self._whole = whole
        self._before = before
        self._known: dict[str, bytes] = {}
        self._characters = 0

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(ids uint32 [tokens], lengths int64 [sentences]). Raises ValueError for a lone surrogate."""
        chunks = self.cut(sentences)
        self._learn(chunks)
        ids = np.frombuffer(b"".join(map(self._known.__getitem__, chunks)), np.uint32)
        boundaries = np.flatnonzero(ids == _BOUNDARY)
        ends = np.append(boundaries - np.arange(len(boundaries)), len(ids) - len(boundaries))
        return np.delete(ids, boundaries), np.diff(ends[: len(sentences)], prepend=0)

    def cut(self, sentences: Sequence[str]) -> list[str]:
        """The chunks of all sentences, with SEPARATOR between those of two."""
        glue = SEPARATOR + self._before
        text = self._before + glue.join(sentences)
        if text.count(SEPARATOR) != max(len(sentences) - 1, 0):
            return self.cut([sentence.replace(SEPARATOR, "") for sentence in sentences])
        if self._whole is None or not self._whole.search(text):
            return self._pattern.findall(text)
        chunks: list[str] = []
        for sentence in sentences:
            as_one = self._whole.search(self._before + sentence)
            chunks += [sentence] if as_one else self._pattern.findall(self._before + sentence)
            chunks.append(SEPARATOR)
        return chunks[:-1]

    def size(self, chunk: str) -> int:
        """How many tokens a chunk has."""
        if chunk not in self._known:
            self._learn([chunk])
        return len(self._known[chunk]) // 4

    def _learn(self, chunks: Iterable[str]) -> None:
        """Make every one of the chunks known; forgets old ones when there are too many."""
        if not self._known or len(self._known) > _CACHED_CHUNKS or self._characters > _CACHED_CHARACTERS:
            self._characters = 0
            self._known = {SEPARATOR: np.uint32(_BOUNDARY).tobytes()}
        unknown = [chunk for chunk in set(chunks) if chunk not in self._known]
        try:
            encodings = self._tokenizer.encode_batch_fast(unknown, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            broken = next(c for c in unknown if any("\ud800" <= character <= "\udfff" for character in c))
            raise ValueError(
                f"text has a lone surrogate, in {broken!r}; it is no valid Unicode, mend the source"
            ) from None
        self._characters += sum(map(len, unknown))
        for chunk, encoding in zip(unknown, encodings, strict=True):
            self._known[chunk] = np.array(encoding.ids, np.uint32).tobytes()
