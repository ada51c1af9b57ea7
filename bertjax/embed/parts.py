"""Texts as rows of token ids; texts longer than a row are truncated or split, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertjax.tokenization.tokenizer import Tokenizer

Long = Literal["truncate", "split"]


@dataclass
class LengthCounts:
    """Numbers of texts and tokens, and of those truncated or split. Special tokens are not counted."""

    texts: int = 0
    tokens: int = 0
    empty: int = 0  # texts without any token
    truncated: int = 0  # texts cut off
    tokens_cut: int = 0  # tokens lost by that
    split: int = 0  # texts encoded in several parts
    parts: int = 0  # the number of these parts in all

    def told(self, max_length: int) -> list[str]:
        """Lines for the user about truncated, split and empty texts; none if every text fits."""
        lines = []
        if self.truncated:
            lines.append(
                f"{self.truncated:,} of {self.texts:,} texts were longer than {max_length} tokens and were truncated: "
                f"{self.tokens_cut:,} of {self.tokens:,} tokens were left out; split keeps them"
            )
        if self.split:
            lines.append(
                f"{self.split:,} of {self.texts:,} texts were longer than {max_length} tokens and were taken in "
                f"{self.parts:,} parts"
            )
        if self.empty:
            lines.append(
                f"{self.empty:,} of {self.texts:,} texts have no token; their vectors are of [CLS] [SEP] alone"
            )
        return lines


def rows_of(
    texts: Sequence[str], tokenizer: Tokenizer, max_length: int, long: Long, counts: LengthCounts
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


def _count(counts: LengthCounts, tokens: int, pieces: Sequence[np.ndarray]) -> None:
    counts.texts += 1
    counts.tokens += tokens
    counts.empty += not tokens
    lost = tokens - sum(len(piece) for piece in pieces)
    counts.truncated += lost > 0
    counts.tokens_cut += lost
    if len(pieces) > 1:
        counts.split += 1
        counts.parts += len(pieces)


def joined_rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Values per token of [CLS] text [SEP] from those of its parts, without the inner [SEP] [CLS]."""
    last = len(parts) - 1
    return np.concatenate([part[int(number > 0) : len(part) - int(number < last)] for number, part in enumerate(parts)])
