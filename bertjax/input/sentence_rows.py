"""A stretch of running text in a row of its own: `[CLS] text [SEP]`, with a [SEP] behind each document in it."""

from __future__ import annotations

import numpy as np

from bertjax.input.pair_rows import Split, Text, Vocabulary
from bertjax.text.ragged import before_in_row, places_in


def lay_out_sentences(
    split: Split, first: np.ndarray, count: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[dict[str, np.ndarray], Text]:
    """Rows of `count` sentences from sentence `first` on, int64[B] both.

    Returns input_ids, token_type_ids (all 0), sequence_ids, int32[B, L], and the text in them.
    """
    row, start, sizes = _parts(split, first, first + count, length - 2)
    begin = row * length + 1 + before_in_row(row, sizes + 1)  # a part is a document's text and its [SEP]
    text = places_in(begin, sizes)
    is_text = np.zeros((len(first), length), bool)
    is_text.ravel()[text] = True
    input_ids = np.full(is_text.shape, vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    input_ids.ravel()[text] = split.tokens(start, sizes)
    input_ids.ravel()[begin + sizes] = vocabulary.sep_id
    used = 1 + np.bincount(row, sizes + 1, len(first))
    encoder = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "sequence_ids": (np.arange(length) < used[:, None]).astype(np.int32),
    }
    return encoder, Text(is_text, start, sizes)


def _parts(split: Split, begin: np.ndarray, end: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The documents' parts in rows of the sentences [begin, end): whose row, first token, tokens; int64 [N] each."""
    documents, sentences = split.document_offsets, split.sentence_offsets
    home = np.searchsorted(documents, begin, side="right") - 1
    parts = np.searchsorted(documents, end, side="left") - home
    row = np.repeat(np.arange(len(begin)), parts)
    document = places_in(home, parts)
    start = sentences[np.maximum(documents[document], begin[row])].astype(np.int64)
    stop = sentences[np.minimum(documents[document + 1], end[row])].astype(np.int64)
    return row, start, np.minimum(stop - start, room)  # only a sentence too long for any row, alone in it, is cut
