"""Plan an epoch of records that are not prose: a row holds a whole record, a crop of it, or a piece of it.

A record is a document of a store. Sentences do not matter: a row is a range of tokens in one record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.input.plan import Reading, even_pieces
from bertjax.input.randomness import below, derive_key, hash64


@dataclass(frozen=True)
class TokenPlan:
    """The rows of one epoch, in no particular order: `length` tokens from token `begin` on."""

    begin: np.ndarray  # int64 [N]
    length: np.ndarray  # int32 [N]

    def __len__(self) -> int:
        return len(self.begin)

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Like `EpochPlan.spans`, with one range of tokens: int64 [n, 1] twice, and bool [n]."""
        return self.begin[rows, None], self.length[rows, None].astype(np.int64), np.zeros(len(rows), bool)


def build_crop_plan(
    documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int, seed: int, epoch: int
) -> TokenPlan:
    """Give each record a row of `room` tokens, not counting [CLS] and [SEP]; longer records are cropped.

    The offset of a crop is uniform, and depends only on the seed, the epoch and the record.
    """
    first, size = _ranges(documents, sentences, reading)
    number = reading.document + reading.copy * (len(documents) - 1)
    offset = below(hash64(derive_key(seed, "crop", epoch), number), np.maximum(size - room, 0) + 1)
    return TokenPlan(first + offset, np.minimum(size, room).astype(np.int32))


def build_piece_plan(
    documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int, seed: int, epoch: int
) -> TokenPlan:
    """Cut each record of over `room` tokens into as few pieces as fit, of about equal size; the same in each epoch."""
    del seed, epoch
    first, size = _ranges(documents, sentences, reading)
    _, begin, end = even_pieces(first, first + size, room)
    return TokenPlan(begin, (end - begin).astype(np.int32))


BUILDERS = {"crops": build_crop_plan, "pieces": build_piece_plan}  # by `data.rows`


def sentences_of_tokens(sentences: np.ndarray, first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First sentence and number of sentences that hold `count` tokens from token `first` on.

    `sentences` are the text's sentence offsets.
    """
    first_sentence, last_sentence = (
        np.searchsorted(sentences, token, side="right") - 1 for token in (first, first + count - 1)
    )
    return first_sentence, last_sentence - first_sentence + 1


def _ranges(documents: np.ndarray, sentences: np.ndarray, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """First token and size of each record, int64 [n] both."""
    first = sentences[documents[reading.document]].astype(np.int64)
    return first, sentences[documents[reading.document + 1]].astype(np.int64) - first
