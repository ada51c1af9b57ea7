"""Encode short words without a Python object for each: NumPy splits the text, and a hash table holds the words' ids.

The table covers 99 % of the words in English text. Other words are encoded by a `ChunkEncoder`, and short ones are then
inserted. The ids equal those of the `ChunkEncoder` if its tokenizer always splits text at ASCII white space and around
ASCII punctuation: then a word's ids depend only on its bytes.
"""

from __future__ import annotations

import string
from collections.abc import Sequence

import numpy as np

from bertjax.tokenization.chunks import SEPARATOR, ChunkEncoder

_KEY_BYTES = 16
_MOST_IDS = 4  # per word in the table
_SLOTS = 1 << 20
_PROBES = 8  # consecutive slots to search for a word
_FEW_CHARACTERS = 1 << 13  # for shorter texts, the overhead of NumPy calls exceeds the gain
_FACTORS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))  # multiplicative hashing; any odd numbers
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)

_SPACE, _ALONE, _IN_WORD = 0, 1, 2
_KIND = np.full(256, _IN_WORD, np.uint8)
_KIND[list(b" \t\n\r")] = _SPACE
_KIND[list((string.punctuation + SEPARATOR).encode())] = _ALONE


class WordCache:
    """Encodes sentences like `chunks`, with a hash table of `slots` words, a power of two.

    A slot takes 36 bytes, but only used pages of the table take memory. The table is emptied when more than half of the
    slots are taken. Texts of fewer than `few` characters bypass it.
    """

    def __init__(self, chunks: ChunkEncoder, slots: int = _SLOTS, few: int = _FEW_CHARACTERS) -> None:
        self._chunks = chunks
        self._slots = slots
        self._few = few
        self._empty()

    def _empty(self) -> None:
        size = self._slots + _PROBES
        self._keys = np.zeros((2, size), np.uint64)  # the word's bytes, padded with zeros; all zeros if free
        self._ids = np.zeros((size, _MOST_IDS), np.uint32)
        self._counts = np.zeros(size, np.uint32)
        self._taken = 0

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode: (ids uint32 [tokens], lengths int64 [sentences]). Raises ValueError for a lone surrogate."""
        text = SEPARATOR.join(sentences)
        if text.count(SEPARATOR) != max(len(sentences) - 1, 0):
            return self.encode([sentence.replace(SEPARATOR, "") for sentence in sentences])
        if len(text) < self._few:
            return self._chunks.encode(sentences)
        try:
            raw = text.encode()
        except UnicodeEncodeError:
            return self._chunks.encode(sentences)  # raises an error that contains the word
        starts, sizes = _cut(raw)
        ends_sentence = np.frombuffer(raw, np.uint8)[starts] == ord(SEPARATOR)
        keys = _keys(raw, starts, sizes)
        slots = self._find(keys, (sizes <= _KEY_BYTES) & ~ends_sentence)
        missing = (slots < 0) & ~ends_sentence
        counts = self._counts[slots].astype(np.int64)
        counts[slots < 0] = 0
        ids = self._ids[slots][np.arange(_MOST_IDS) < counts[:, None]]
        if missing.any():
            missed = np.flatnonzero(missing)
            other_ids, counts[missed] = self._chunks.encode(_words(raw, starts[missed], sizes[missed]))
            is_other = np.repeat(missing, counts)
            cached_ids, ids = ids, np.empty(len(is_other), np.uint32)
            ids[~is_other], ids[is_other] = cached_ids, other_ids
            self._insert(keys[:, missed], sizes[missed], other_ids, counts[missed])
        ends = np.append(np.cumsum(counts)[ends_sentence], len(ids))
        return ids, np.diff(ends, prepend=0)[: len(sentences)]

    def _find(self, keys: np.ndarray, is_short: np.ndarray) -> np.ndarray:
        """The slot of each short word, -1 for the others and for words without a slot: int64 [words]."""
        slots = np.full(keys.shape[1], -1)
        pending = np.flatnonzero(is_short)
        low, high = keys[0, pending], keys[1, pending]
        at = self._first_slots(low, high)
        for _ in range(_PROBES):
            in_slot = self._keys[0, at]
            matches = (in_slot == low) & (self._keys[1, at] == high)
            slots[pending[matches]] = at[matches]
            further = ~matches & (in_slot != 0)  # a word is never inserted behind a free slot
            pending, low, high, at = pending[further], low[further], high[further], at[further] + 1
            if not len(pending):
                break
        return slots

    def _insert(self, keys: np.ndarray, sizes: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> None:
        """Insert the short words; drops a word if none of its `_PROBES` slots is free."""
        if 2 * self._taken > self._slots:
            self._empty()
        short = np.flatnonzero((sizes <= _KEY_BYTES) & (counts <= _MOST_IDS))
        (low, high), first, counts = keys[:, short], (np.cumsum(counts) - counts)[short], counts[short]
        at = self._first_slots(low, high)
        for _ in range(_PROBES):
            free = np.flatnonzero(self._keys[0, at] == 0)
            chosen = free[np.unique(at[free], return_index=True)[1]]  # one word per free slot
            self._keys[0, at[chosen]], self._keys[1, at[chosen]] = low[chosen], high[chosen]
            self._counts[at[chosen]] = counts[chosen]
            for place in range(_MOST_IDS):
                has = chosen[counts[chosen] > place]
                self._ids[at[has], place] = ids[first[has] + place]
            self._taken += len(chosen)
            out = (self._keys[0, at] != low) | (self._keys[1, at] != high)
            low, high, first, counts, at = low[out], high[out], first[out], counts[out], at[out] + 1

    def _first_slots(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The first possible slot of each word: int64 [words]."""
        hashes = low * _FACTORS[0] ^ high * _FACTORS[1]
        return (hashes >> np.uint64(65 - self._slots.bit_length())).astype(np.int64)


def _cut(raw: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Split text into words: first byte and size of each, both int64 [words]; a SEPARATOR is a word."""
    kind = np.zeros(len(raw) + 2, np.uint8)
    kind[1:-1] = _KIND[np.frombuffer(raw, np.uint8)]
    in_word = kind == _IN_WORD
    starts = np.flatnonzero((kind == _ALONE)[1:-1] | (in_word[1:-1] & ~in_word[:-2]))
    is_word = in_word[1:][starts]
    sizes = np.ones(len(starts), np.int64)
    sizes[is_word] = np.flatnonzero(in_word[1:-1] & ~in_word[2:]) + 1 - starts[is_word]
    return starts, sizes


def _words(raw: bytes, starts: np.ndarray, sizes: np.ndarray) -> list[str]:
    """The words as strings."""
    ends = np.cumsum(sizes + 1)
    spaced = np.zeros(ends[-1], np.uint8)
    is_in_word = np.ones(len(spaced), bool)
    is_in_word[ends - 1] = False
    places = np.repeat(starts - (ends - sizes - 1), sizes) + np.flatnonzero(is_in_word)
    spaced[is_in_word] = np.frombuffer(raw, np.uint8)[places]
    return spaced[:-1].tobytes().decode().split(SEPARATOR)


def _keys(raw: bytes, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The first `_KEY_BYTES` bytes of each word as two numbers, padded with zeros: uint64 [2, words]."""
    padded = raw + bytes(_KEY_BYTES)
    at_every_byte = np.ndarray((len(raw) + 8 + 1,), "<u8", padded, strides=(1,))
    return np.stack([at_every_byte[starts + 8 * half] & _MASKS[np.clip(sizes - 8 * half, 0, 8)] for half in range(2)])
