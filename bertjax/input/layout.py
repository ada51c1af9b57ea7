"""Lay out text in rows: [CLS] A [SEP] B [SEP] for pairs, [CLS] text [SEP] for running text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from bertjax.input.packing import BatchArray
from bertjax.input.randomness import fold_in, hash64
from bertjax.text.ragged import before_in_row, range_indices

if TYPE_CHECKING:
    from bertjax.input.made_up_text import MadeUpSplit, MadeUpVocabulary
    from bertjax.text.store.format import SplitView
    from bertjax.tokenization.tokenizer import Tokenizer


# Text and vocabulary from a token store, or made up for plans and benchmarks
TextView: TypeAlias = "SplitView | MadeUpSplit"
Vocabulary: TypeAlias = "Tokenizer | MadeUpVocabulary"


@dataclass(frozen=True)
class Template:
    """The special tokens of a family. [CLS] begins a row; [SEP] ends the row and each document."""

    separators: int = 1  # [SEP] tokens between A and B; RoBERTa: <s> A </s></s> B </s>
    token_types: bool = True  # 1 for B and its [SEP]; False: 0 everywhere

    @property
    def pair_tokens(self) -> int:
        """Special tokens in a row of one sentence pair."""
        return 2 + self.separators

    @property
    def text_tokens(self) -> int:
        """Special tokens in a row of running text from one document; each further document has one more."""
        return 2


BERT = Template()


class Text(NamedTuple):
    """Where the text of some rows is, and the ranges of the split's tokens that it comes from, in order."""

    is_text: np.ndarray  # bool [B, L]
    starts: np.ndarray  # int64 [n]
    lengths: np.ndarray  # int64 [n]


def encoder_arrays(length: int, pad_id: int = 0) -> dict[str, BatchArray]:
    """The arrays that the encoder reads, for rows of `length` tokens."""
    return {
        "input_ids": BatchArray("token", length, np.int32, filler=pad_id),
        "token_type_ids": BatchArray("token", length, np.int32),
        "sequence_ids": BatchArray("token", length, np.int32),
    }


def lay_out_pairs(
    split: TextView,
    first: np.ndarray,
    count: np.ndarray,
    keys: np.ndarray,
    length: int,
    vocabulary: Vocabulary,
    template: Template = BERT,
) -> tuple[dict[str, np.ndarray], Text]:
    """Lay out sentence pairs: A and B are `count` sentences from sentence `first` on, int64 [B, 2] both.

    `keys`, uint64 [B], determine how pairs are truncated. Returns input_ids, token_type_ids, sequence_ids,
    int32 [B, L], and the text in them.
    """
    begin = split.sentence_offsets[first].astype(np.int64)
    sizes = split.sentence_offsets[first + count] - begin
    starts, lengths = truncate(begin, sizes, length - template.pair_tokens, fold_in(keys, "truncate"))
    tokens = split.tokens(starts.ravel(), lengths.ravel())
    encoder, is_text = lay_out(tokens, lengths, length, vocabulary, template)
    return encoder, Text(is_text, starts.ravel(), lengths.ravel())


def truncate(
    starts: np.ndarray, lengths: np.ndarray, max_tokens: int, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Truncate pairs to `max_tokens` tokens: one by one from the longer segment (B if equal), at a random end.

    Rule: truncate_seq_pair of google-research/bert. All arrays but `keys`, uint64 [B], are int64 [B, 2] for A and B.
    """
    half = np.array([max_tokens - max_tokens // 2, max_tokens // 2])
    sizes = np.minimum(lengths, np.maximum(max_tokens - lengths[:, ::-1], half))
    return starts + _heads(lengths - sizes, keys), sizes


def _heads(tosses: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Number of heads in n fair coin tosses for each n in `tosses`, int64 [B, 2]: the ones among n random bits."""
    number = tosses.ravel()
    words = -(-number // 64)
    owner = np.repeat(np.arange(len(number)), words)
    word = np.arange(len(owner)) - np.repeat(np.cumsum(words) - words, words)
    bits = hash64(hash64(keys[:, None], np.arange(2)).ravel()[owner], word)
    bits >>= (64 - np.minimum(number[owner] - 64 * word, 64)).astype(np.uint64)
    heads = np.bincount(owner, weights=np.bitwise_count(bits), minlength=len(number))
    return heads.astype(np.int64).reshape(tosses.shape)


def lay_out(
    tokens: np.ndarray, lengths: np.ndarray, length: int, vocabulary: Vocabulary, template: Template = BERT
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Lay out rows [CLS] A [SEP] B [SEP] from the concatenated tokens of all A and B; `lengths` is int64 [B, 2].

    Returns input_ids, token_type_ids, sequence_ids, int32 [B, L], and the positions of the text, bool [B, L].
    """
    column = np.arange(length, dtype=np.int32)
    between = (lengths[:, :1] + 1).astype(np.int32) + np.arange(template.separators, dtype=np.int32)
    last = (lengths.sum(axis=1, keepdims=True) + template.pair_tokens - 1).astype(np.int32)
    rows = np.arange(len(lengths))[:, None]
    is_inside = column <= last
    is_text = column < last
    is_text[:, 0] = False
    is_text[rows, between] = False
    input_ids = np.full(is_inside.shape, vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    input_ids[rows, between] = vocabulary.sep_id
    input_ids[rows, last] = vocabulary.sep_id
    input_ids[is_text] = tokens
    if template.token_types:
        token_types = ((column > between[:, -1:]) & is_inside).astype(np.int32)
    else:
        token_types = np.zeros_like(input_ids)
    encoder = {"input_ids": input_ids, "token_type_ids": token_types, "sequence_ids": is_inside.astype(np.int32)}
    return encoder, is_text


def lay_out_sentences(
    split: TextView,
    first: np.ndarray,
    count: np.ndarray,
    length: int,
    vocabulary: Vocabulary,
    template: Template = BERT,
) -> tuple[dict[str, np.ndarray], Text]:
    """Lay out rows [CLS] text [SEP]: `count` sentences from sentence `first` on, int64 [B] both.

    A [SEP] ends each document. Returns input_ids, token_type_ids (all 0), sequence_ids, int32 [B, L], and the text in
    them.
    """
    row, start, sizes = _parts(split, first, first + count, length - template.text_tokens)
    return _lay_out_parts(split.tokens(start, sizes), row, start, sizes, len(first), length, vocabulary)


def lay_out_ranges(
    split: TextView,
    first: np.ndarray,
    count: np.ndarray,
    length: int,
    vocabulary: Vocabulary,
    change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]] | None = None,
) -> tuple[dict[str, np.ndarray], Text]:
    """Like `lay_out_sentences`, for `count` tokens from token `first` on, int64 [B] both, which must fit.

    `change` maps the concatenated tokens and their `count` to the tokens and counts that are laid out.
    """
    tokens = split.tokens(first, count)
    if change is not None:
        tokens, count = change(tokens, count)
    return _lay_out_parts(tokens, np.arange(len(first)), first, count, len(first), length, vocabulary)


def _lay_out_parts(
    tokens: np.ndarray,
    row: np.ndarray,
    start: np.ndarray,
    sizes: np.ndarray,
    rows: int,
    length: int,
    vocabulary: Vocabulary,
) -> tuple[dict[str, np.ndarray], Text]:
    """Lay out rows [CLS] text [SEP] text [SEP] from parts of documents: the row, start and size of each.

    `tokens` are the concatenated tokens of the parts.
    """
    begin = row * length + 1 + before_in_row(row, sizes + 1)  # each part is followed by a [SEP]
    text = range_indices(begin, sizes)
    is_text = np.zeros((rows, length), bool)
    is_text.ravel()[text] = True
    input_ids = np.full(is_text.shape, vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    input_ids.ravel()[text] = tokens
    input_ids.ravel()[begin + sizes] = vocabulary.sep_id
    used = 1 + np.bincount(row, sizes + 1, rows)
    encoder = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "sequence_ids": (np.arange(length) < used[:, None]).astype(np.int32),
    }
    return encoder, Text(is_text, start, sizes)


def _parts(split: TextView, begin: np.ndarray, end: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split rows of sentences [begin, end) by document: row, first token and size of each part, int64 [N] each."""
    documents, sentences = split.document_offsets, split.sentence_offsets
    home = np.searchsorted(documents, begin, side="right") - 1
    parts = np.searchsorted(documents, end, side="left") - home
    row = np.repeat(np.arange(len(begin)), parts)
    document = range_indices(home, parts)
    start = sentences[np.maximum(documents[document], begin[row])].astype(np.int64)
    stop = sentences[np.minimum(documents[document + 1], end[row])].astype(np.int64)
    return row, start, np.minimum(stop - start, room)  # cuts only a sentence that is longer than a row and alone in it
