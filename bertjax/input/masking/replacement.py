"""What is shown instead of hidden tokens: [MASK], the token itself, or a random one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bertjax.input.layout import Split, Vocabulary
from bertjax.input.randomness import below, derive_key, fold_in, hash64

_LOW_HALF = 2**32 - 1

Draw = Callable[[np.ndarray], np.ndarray]  # uint64 random bits [n] -> ids [n]


@dataclass(frozen=True)
class Replacement:
    """What a hidden token is shown as; by default [MASK] in 80 %, a random token and itself in 10 % (BERT, 3.1)."""

    mask_id: int
    random_id: Draw
    keep_share: float = 0.1
    random_share: float = 0.1  # the rest is shown as [MASK]
    drawn_at: Callable[[np.ndarray], np.ndarray] = lambda positions: positions  # see `REPLACED_BY`

    def shown(self, labels: np.ndarray, positions: np.ndarray, is_used: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """What stands at `positions` int64 [B, P], ascending where `is_used`, for `labels` int32 [B, P]: int32 [B, P].

        All draws depend on `keys`, uint64 [B], and the positions alone.
        """
        keys = fold_in(keys, "replacement")[:, None]
        bits = hash64(keys, positions)
        places = self.drawn_at(positions)
        kind = ((bits if places is positions else hash64(keys, places)) & _LOW_HALF) * 2.0**-32
        shown = np.where(kind < self.keep_share, labels, np.int32(self.mask_id))
        is_random = (kind >= self.keep_share) & (kind < self.keep_share + self.random_share) & is_used
        shown[is_random] = self.random_id(bits[is_random])
        return shown


def _first_of_run(positions: np.ndarray) -> np.ndarray:
    """The first of the successive positions that each one is among, int64 [B, P]."""
    slot = np.arange(positions.shape[1])
    is_first = np.diff(positions, axis=1, prepend=-2) != 1
    return np.take_along_axis(positions, np.maximum.accumulate(np.where(is_first, slot, 0), axis=1), axis=1)


# Where the kind of replacement is drawn: for each token, or once for tokens that stand side by side (SpanBERT).
REPLACED_BY = {"token": lambda positions: positions, "span": _first_of_run}


def _of_vocabulary(vocabulary: Vocabulary, _: Split) -> Draw:
    size = vocabulary.vocab_size
    return lambda bits: (bits >> 32) * size >> 32


def _ordinary(vocabulary: Vocabulary, _: Split) -> Draw:
    ids = np.setdiff1d(np.arange(vocabulary.vocab_size), list(vocabulary.special.values()))
    return lambda bits: ids[(bits >> 32) * len(ids) >> 32]


def _of_corpus(_: Vocabulary, split: Split) -> Draw:
    tokens, key = int(split.sentence_offsets[-1]), derive_key("token of the corpus")

    def draw(bits: np.ndarray) -> np.ndarray:
        starts = below(hash64(key, bits), tokens)
        return split.tokens(starts, np.ones_like(starts))

    return draw


RANDOM_IDS: dict[str, Callable[[Vocabulary, Split], Draw]] = {
    "vocabulary": _of_vocabulary,  # all ids, special ones too
    "ordinary": _ordinary,  # all but the special ones: RoBERTa, BigBird
    "corpus": _of_corpus,  # a token of the text, each as likely: SpanBERT
}
