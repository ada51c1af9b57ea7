"""The n-grams of token ids as 64-bit hashes, none of them reaching from one text into the next."""

from __future__ import annotations

import numpy as np

from bertjax.input.randomness import derive_key, hash64
from bertjax.text.ragged import places_in


class NGrams:
    """Hashes every run of `n` tokens; equal runs have equal hashes, and two others by chance once in 2**64."""

    def __init__(self, n: int, vocab_size: int) -> None:
        self.n = n
        self._of_token = hash64(derive_key("n-gram token"), np.arange(vocab_size))
        self._of_place = hash64(derive_key("n-gram place"), np.arange(n)) | np.uint64(1)

    def __call__(self, ids: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of texts that lie end to end: the hashes, uint64 in order, and how many are each text's, int64 [texts].

        ids: any integers [tokens]; lengths: int64 [texts] in tokens. A text of fewer than n tokens has none.
        """
        counts = np.maximum(lengths - (self.n - 1), 0)
        windows = len(ids) - (self.n - 1)
        if windows <= 0:
            return np.zeros(0, np.uint64), counts
        tokens = self._of_token[ids]
        hashes = tokens[:windows] * self._of_place[0]
        for place in range(1, self.n):
            hashes += tokens[place : place + windows] * self._of_place[place]
        return hashes[places_in(np.cumsum(lengths) - lengths, counts)], counts
