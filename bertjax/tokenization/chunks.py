"""Encoding text by chunks: `tokenizers` encodes each distinct chunk once, and repeated chunks are looked up.

That is several times as fast as the library alone. It is exact if the ids of a chunk do not depend on its neighbours,
which each kind of tokenizer must ensure by its pattern.
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
_CHUNKS_WITH_OFFSETS, _CHARACTERS_WITH_OFFSETS = 1 << 16, 64  # longer ones hardly come again
_TOGETHER = 1 << 10  # chunks of a text that the tokenizer is given
_CACHED_CHARACTERS = 1 << 24  # of all chunks: where words are not spaced, a chunk is a sentence


class ChunkEncoder:
    """Encodes sentences with a tokenizer that adds no special tokens, cut by `pattern`, for which SEPARATOR is a chunk.

    `before` is prepended to each sentence; its methods can be given others. A sentence that then matches a pattern of
    `whole` is encoded uncut. `correct` may give other ids for a chunk and the ids that the tokenizer gave it. `between`
    is a special token, with its id, that no chunk has and that the tokenizer cuts text at: chunks are then encoded many
    at a time, which is six times as fast.
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
        self._offsets = lru_cache(_CHUNKS_WITH_OFFSETS)(self._offsets_of)

    def encode(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(ids uint32 [tokens], lengths int64 [sentences]). Raises ValueError for a lone surrogate.

        `before`: what is prepended to each sentence, if that is not the encoder's own.
        """
        chunks = self.cut(sentences, before)
        self._learn(chunks)
        ids = np.frombuffer(b"".join(map(self._known.__getitem__, chunks)), np.uint32)
        boundaries = np.flatnonzero(ids == _BOUNDARY)
        ends = np.append(boundaries - np.arange(len(boundaries)), len(ids) - len(boundaries))
        return np.delete(ids, boundaries), np.diff(ends[: len(sentences)], prepend=0)

    def cut(self, sentences: Sequence[str], before: Sequence[str] | None = None) -> list[str]:
        """The chunks of all sentences, with SEPARATOR between those of two."""
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
            text = space + sentence if sentence else ""  # of no text no space is a token either
            as_one = any(pattern.search(text) for pattern in self._whole)
            # The tokenizer prepends its own space itself.
            chunks += [text.removeprefix(self._before)] if as_one else self._pattern.findall(text)
            chunks.append(SEPARATOR)
        return chunks[:-1]

    def offsets(self, sentence: str, before: str | None = None) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2]."""
        before = self._before if before is None else before
        text, end = before + sentence, 0
        found: list[tuple[int, int]] = []
        for chunk in self.cut([sentence], [before]):
            begin = text.index(chunk, end)
            end = begin + len(chunk)
            offsets = self._offsets if len(chunk) <= _CHARACTERS_WITH_OFFSETS else self._offsets_of
            found += [(begin + first, begin + last) for first, last in offsets(chunk)]
        return (np.array(found, np.int64).reshape(-1, 2) - len(before)).clip(0)

    def _offsets_of(self, chunk: str) -> list[tuple[int, int]]:
        offsets = self._tokenizer.encode(chunk, add_special_tokens=False).offsets
        # Where `correct` gave another number of tokens, each of them stands for the whole chunk.
        return offsets if len(offsets) == self.size(chunk) else [(0, len(chunk))] * self.size(chunk)

    def size(self, chunk: str) -> int:
        """The number of tokens of a chunk."""
        if chunk not in self._known:
            self._learn([chunk])
        return len(self._known[chunk]) // 4

    def _learn(self, chunks: Iterable[str]) -> None:
        """Encode the chunks that are not cached; clears the cache when it is too large."""
        if not self._known or len(self._known) > _CACHED_CHUNKS or self._characters > _CACHED_CHARACTERS:
            self._characters = 0
            self._known = {SEPARATOR: np.uint32(_BOUNDARY).tobytes()}
        unknown = [chunk for chunk in set(chunks) if chunk not in self._known]
        try:
            found = self._together(unknown) if self._between else self._one_by_one(unknown)
        except (TypeError, UnicodeEncodeError):
            broken = next(c for c in unknown if any("\ud800" <= character <= "\udfff" for character in c))
            raise ValueError(
                f"text has a lone surrogate, in {broken!r}; it is not valid Unicode; correct the source"
            ) from None
        self._characters += sum(map(len, unknown))
        if self._correct:
            given = (np.frombuffer(ids, np.uint32).tolist() for ids in found)
            found = [np.array(ids, np.uint32).tobytes() for ids in map(self._correct, unknown, given)]
        self._known.update(zip(unknown, found, strict=True))

    def _one_by_one(self, chunks: Sequence[str]) -> list[bytes]:
        """The ids of each chunk, the bytes of uint32."""
        encodings = self._tokenizer.encode_batch_fast(chunks, add_special_tokens=False)
        return [np.array(encoding.ids, np.uint32).tobytes() for encoding in encodings]

    def _together(self, chunks: Sequence[str]) -> list[bytes]:
        """As `_one_by_one`, from texts of many chunks with the special token between them."""
        assert self._between is not None
        token, number = self._between
        groups = [chunks[first : first + _TOGETHER] for first in range(0, len(chunks), _TOGETHER)]
        texts = [token.join(group) for group in groups]
        found: list[bytes] = []
        for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            ids = np.array(encoding.ids, np.uint32)
            ends = 4 * np.append(np.flatnonzero(ids == number), len(ids))
            raw, begins = ids.tobytes(), [0, *(ends[:-1] + 4).tolist()]
            found += [raw[first:last] for first, last in zip(begins, ends.tolist(), strict=True)]
        return found
