"""Encode text by chunks: `tokenizers` encodes each distinct chunk once, and repeated chunks are looked up.

This is several times as fast as the library alone, and exact if a chunk's ids do not depend on its neighbours, which
each kind of tokenizer ensures by its pattern.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer

SEPARATOR = "\0"  # between sentences; dropped from text that is cut

_BOUNDARY = 0xFFFFFFFF
_CACHED_CHUNKS = 1 << 19
_CHUNKS_WITH_OFFSETS, _CHARACTERS_WITH_OFFSETS = 1 << 16, 64  # cache of offsets; longer chunks rarely recur
_JOINED_CHUNKS = 1 << 10
_CACHED_CHARACTERS = 1 << 24  # limits memory: without spaces between words, a chunk is a sentence


class ChunkEncoder:
    """Encodes sentences by chunks with a tokenizer that adds no special tokens.

    Args of the constructor:
        pattern: Matches the chunks; SEPARATOR is one.
        whole: A sentence that matches one of these is encoded uncut.
        before: Prepended to each sentence; methods can override it.
        correct: (chunk, its ids) -> its corrected ids.
        between: A special token, with its id, that is not in any chunk and at which the tokenizer cuts text. It allows
            encoding many chunks in one call, which is six times as fast.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        pattern: re.Pattern[str],
        whole: Sequence[re.Pattern[str]] = (),
        before: str = "",
        correct: Callable[[str, list[int]], list[int]] | None = None,
        between: tuple[str, int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._pattern = pattern
        self._whole = whole
        self._before = before
        self._correct = correct
        self._between = between
        self._known: dict[str, bytes] = {}
        self._characters = 0
        self._offsets = lru_cache(_CHUNKS_WITH_OFFSETS)(self._chunk_offsets)

    def encode(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences: (ids uint32 [tokens], lengths int64 [sentences]). Raises ValueError for a lone surrogate.

        `before` is prepended to each sentence instead of the encoder's own.
        """
        chunks = self.cut(sentences, before)
        self._fill_cache(chunks)
        ids = np.frombuffer(b"".join(map(self._known.__getitem__, chunks)), np.uint32)
        boundaries = np.flatnonzero(ids == _BOUNDARY)
        ends = np.append(boundaries - np.arange(len(boundaries)), len(ids) - len(boundaries))
        return np.delete(ids, boundaries), np.diff(ends[: len(sentences)], prepend=0)

    def cut(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> list[str]:
        """Cut sentences into chunks, with SEPARATOR between two sentences."""
        if before is None:
            text = self._before + (SEPARATOR + self._before).join(sentences)
        else:
            parts = itertools.chain.from_iterable(zip([SEPARATOR] * len(sentences), before, sentences, strict=True))
            text = "".join(itertools.islice(parts, 1, None))
        if text.count(SEPARATOR) != max(len(sentences) - 1, 0):
            return self.cut([sentence.replace(SEPARATOR, "") for sentence in sentences], before)
        if not any(pattern.search(text) for pattern in self._whole):
            return self._pattern.findall(text)
        chunks: list[str] = []
        for sentence, space in zip(sentences, before or [self._before] * len(sentences), strict=True):
            text = space + sentence if sentence else ""  # an empty sentence gets no space
            as_one = any(pattern.search(text) for pattern in self._whole)
            # The tokenizer prepends a space itself.
            chunks += [text.removeprefix(self._before)] if as_one else self._pattern.findall(text)
            chunks.append(SEPARATOR)
        return chunks[:-1]

    def offsets(self, sentence: str, before: str | None = None) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2]."""
        before = self._before if before is None else before
        text, end = before + sentence, 0
        spans: list[tuple[int, int]] = []
        for chunk in self.cut([sentence], [before]):
            begin = text.index(chunk, end)
            end = begin + len(chunk)
            offsets = self._offsets if len(chunk) <= _CHARACTERS_WITH_OFFSETS else self._chunk_offsets
            spans += [(begin + first, begin + last) for first, last in offsets(chunk)]
        return (np.array(spans, np.int64).reshape(-1, 2) - len(before)).clip(0)

    def _chunk_offsets(self, chunk: str) -> list[tuple[int, int]]:
        offsets = self._tokenizer.encode(chunk, add_special_tokens=False).offsets
        # If `correct` changed the number of tokens, each token gets the span of the whole chunk.
        return offsets if len(offsets) == self.size(chunk) else [(0, len(chunk))] * self.size(chunk)

    def size(self, chunk: str) -> int:
        """The number of tokens in a chunk."""
        if chunk not in self._known:
            self._fill_cache([chunk])
        return len(self._known[chunk]) // 4

    def _fill_cache(self, chunks: Iterable[str]) -> None:
        """Encode the uncached chunks; first empties the cache if it is too large."""
        if not self._known or len(self._known) > _CACHED_CHUNKS or self._characters > _CACHED_CHARACTERS:
            self._characters = 0
            self._known = {SEPARATOR: np.uint32(_BOUNDARY).tobytes()}
        unknown = [chunk for chunk in set(chunks) if chunk not in self._known]
        try:
            encoded = self._encode_joined(unknown) if self._between else self._encode_separately(unknown)
        except (TypeError, UnicodeEncodeError):
            broken = next(c for c in unknown if any("\ud800" <= character <= "\udfff" for character in c))
            raise ValueError(
                f"text has a lone surrogate, in {broken!r}; it is not valid Unicode; correct the source"
            ) from None
        self._characters += sum(map(len, unknown))
        if self._correct:
            original = (np.frombuffer(ids, np.uint32).tolist() for ids in encoded)
            encoded = [np.array(ids, np.uint32).tobytes() for ids in map(self._correct, unknown, original)]
        self._known.update(zip(unknown, encoded, strict=True))

    def _encode_separately(self, chunks: Sequence[str]) -> list[bytes]:
        """The ids of each chunk, as bytes of uint32."""
        encodings = self._tokenizer.encode_batch_fast(chunks, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32).tobytes() for encoding in encodings]

    def _encode_joined(self, chunks: Sequence[str]) -> list[bytes]:
        """Like `_encode_separately`, but encodes many chunks as one text, with the special token between them."""
        assert self._between is not None
        token, number = self._between
        groups = [chunks[first : first + _JOINED_CHUNKS] for first in range(0, len(chunks), _JOINED_CHUNKS)]
        texts = [token.join(group) for group in groups]
        encoded: list[bytes] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, np.uint32)
            ends = 4 * np.append(np.flatnonzero(ids == number), len(ids))
            raw, begins = ids.tobytes(), [0, *(ends[:-1] + 4).tolist()]
            encoded += [raw[first:last] for first, last in zip(begins, ends.tolist(), strict=True)]
        return encoded
