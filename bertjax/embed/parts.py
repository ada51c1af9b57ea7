"""Texts as rows of token ids; texts longer than a row are truncated or split, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from bertjax.input.lengths import LengthCounts
from bertjax.tokenization.tokenizer import Tokenizer

Long = Literal["truncate", "split"]


class TextCounts(LengthCounts):
    """Numbers of texts, in the words of the encoder: a long text is split into parts."""

    unit, window = "texts", "parts"
    remedy = "; split keeps them"
    when_empty = "have no token; their vectors are of [CLS] [SEP] alone"


def rows_of(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, long: Long, counts: TextCounts
) -> list[list[np.ndarray]]:
    """The rows of each text, int32 [CLS] ... [SEP] of at most `max_length` tokens: one, or with `split` its parts.

    Parts end where a word ends, unless one word fills a row. `counts` is added to.
    """
    rows = []
    for ids in tokenizer.encode_sentences(texts):
        pieces = _pieces(ids, max_length - 2, long, tokenizer.is_continuation)
        _count(counts, len(ids), pieces)
        rows.append([np.array([tokenizer.cls_id, *piece, tokenizer.sep_id], np.int32) for piece in pieces])
    return rows


def _pieces(ids: np.ndarray, room: int, long: Long, is_continuation: np.ndarray) -> list[np.ndarray]:
    if len(ids) <= room or long == "truncate":
        return [ids[:room]]
    pieces, start = [], 0
    while len(ids) - start > room:
        end = start + room
        while end > start and is_continuation[ids[end]]:
            end -= 1
        end = end if end > start else start + room
        pieces.append(ids[start:end])
        start = end
    return [*pieces, ids[start:]]


def _count(counts: TextCounts, tokens: int, pieces: Sequence[np.ndarray]) -> None:
    counts.examples += 1
    counts.tokens += tokens
    counts.empty += not tokens
    lost = tokens - sum(len(piece) for piece in pieces)
    counts.truncated += lost > 0
    counts.tokens_cut += lost
    if len(pieces) > 1:
        counts.windowed += 1
        counts.windows += len(pieces)


def joined_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Values per token of [CLS] text [SEP] from those of its parts, without the inner [SEP] [CLS]."""
    last = len(parts) - 1
    return np.concatenate([part[int(number > 0) : len(part) - int(number < last)] for number, part in enumerate(parts)])
