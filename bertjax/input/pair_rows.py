"""A sentence pair in a row of its own: cut to size, laid out with its special tokens, labelled."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from bertjax.input.randomness import fold_in, hash64

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


class Split(Protocol):
    """What is needed of a split of the token store (`bertjax.text.store.format.SplitView`)."""

    document_offsets: np.ndarray  # int64 [documents + 1], in sentences
    sentence_offsets: np.ndarray  # int64 [sentences + 1], in tokens

    @property
    def source_edges(self) -> np.ndarray:
        """int64 [sources + 1], in documents; asked for only if the sources are mixed."""
        ...

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of all these stretches, end to end."""
        ...

    @property
    def tells_words(self) -> bool:
        """Whether it knows of each token if it goes on with a word."""
        ...

    def continues(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Which tokens of all these stretches do, bool, end to end; asked for only if it knows."""
        ...


class Text(NamedTuple):
    """The text in rows: where it is, bool [B, L]; and the stretches of the split it is, in order, int64 [n] both."""

    places: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


class Vocabulary(Protocol):
    """What is needed of a tokenizer (`bertjax.tokenization.tokenizer.Tokenizer`)."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray  # bool [vocab_size], tokens that go on with a word


def lay_out_pairs(
    split: Split, first: np.ndarray, count: np.ndarray, keys: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[dict[str, np.ndarray], Text]:
    """Rows of A and B, `count` sentences from sentence `first` on, int64[B, 2] both, cut under `keys`, uint64[B].

    Returns input_ids, token_type_ids, sequence_ids, int32[B, L], and the text in them.
    """
    begin = split.sentence_offsets[first].astype(np.int64)
    sizes = split.sentence_offsets[first + count] - begin
    starts, lengths = truncate(begin, sizes, length - SPECIAL_TOKENS, fold_in(keys, "truncate"))
    encoder, is_text = lay_out(split.tokens(starts.ravel(), lengths.ravel()), lengths, length, vocabulary)
    return encoder, Text(is_text, starts.ravel(), lengths.ravel())


def truncate(
    starts: np.ndarray, lengths: np.ndarray, max_tokens: int, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cut pairs to `max_tokens` tokens, as if one by one from the longer segment (B if equal), from either end.

    Rule: truncate_seq_pair of google-research/bert. All arrays but `keys`, uint64[B], are int64[B, 2] for A and B.
    """
    half = np.array([max_tokens - max_tokens // 2, max_tokens // 2])
    kept = np.minimum(lengths, np.maximum(max_tokens - lengths[:, ::-1], half))
    return starts + _heads(lengths - kept, keys), kept


def _heads(tosses: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """How many of each number of fair coins show heads, int64[B, 2]: the ones among that many random bits."""
    number = tosses.ravel()
    words = -(-number // 64)
    owner = np.repeat(np.arange(len(number)), words)
    word = np.arange(len(owner)) - np.repeat(np.cumsum(words) - words, words)
    bits = hash64(hash64(keys[:, None], np.arange(2)).ravel()[owner], word)
    bits >>= (64 - np.minimum(number[owner] - 64 * word, 64)).astype(np.uint64)
    ones = np.bincount(owner, weights=np.bitwise_count(bits), minlength=len(number))
    return ones.astype(np.int64).reshape(tosses.shape)


def lay_out(
    tokens: np.ndarray, lengths: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Put `[CLS] A [SEP] B [SEP]` and padding in rows: the arrays that every encoder reads.

    `tokens` are the ids of the first row's A, its B, the second row's A, ...; `lengths` int64[B, 2].
    Returns input_ids, token_type_ids, sequence_ids, int32[B, L], and where A and B are, bool[B, L].
    """
    column = np.arange(length, dtype=np.int32)
    first_sep = (lengths[:, :1] + 1).astype(np.int32)
    last_sep = (lengths.sum(axis=1, keepdims=True) + 2).astype(np.int32)
    is_inside = column <= last_sep
    is_second = (column > first_sep) & is_inside
    is_text = (column < last_sep) & (column != first_sep)
    is_text[:, 0] = False
    input_ids = np.full(is_inside.shape, vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    rows = np.arange(len(lengths))[:, None]
    input_ids[rows, first_sep] = vocabulary.sep_id
    input_ids[rows, last_sep] = vocabulary.sep_id
    input_ids[is_text] = tokens
    encoder = {
        "input_ids": input_ids,
        "token_type_ids": is_second.astype(np.int32),
        "sequence_ids": is_inside.astype(np.int32),
    }
    return encoder, is_text


def label_pairs(is_random: np.ndarray, weight: float = 1.0) -> dict[str, np.ndarray]:
    """The next-sentence objective's part of a batch: 0 where B follows A, 1 where it is random; `is_random` bool[B].

    `weight` is 0 for rows without pairs.
    """
    labels = is_random[:, None].astype(np.int32)
    return {
        "cls_positions": np.zeros_like(labels),
        "pair_labels": labels,
        "pair_weights": np.full(labels.shape, weight, np.float32),
    }
