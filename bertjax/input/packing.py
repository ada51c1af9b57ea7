"""Pack several sequences into one row: choose which share a row, and combine their arrays.

A sequence is a sentence pair or running text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from bertjax.input.randomness import hash64
from bertjax.text.ragged import before_in_row

_MIXED = np.uint64(2**40 - 1)
_NARROWEST = 128  # tokens; narrower tables are not faster, because the overhead of NumPy calls dominates
_SPECIAL = 8  # upper bound of a sequence's special tokens

Per = Literal["token", "prediction", "sequence"]


@dataclass(frozen=True)
class BatchArray:
    """An array of a batch, `dtype` [rows, width], and how it is packed."""

    per: Per  # what an entry describes
    width: int  # entries of a row: tokens, or slots for predictions or sequences
    dtype: type[np.generic]
    used: str = ""  # for predictions: the key whose values are above 0 in used slots
    is_position: bool = False  # values are positions in the row, which move with their sequence
    filler: int = 0  # in padding and unused slots
    may_be_full: bool = False  # for predictions: a row may have too few slots, and then drops the last ones


@dataclass(frozen=True)
class Packing:
    """The rows of an epoch: row n holds the sequences `order[offsets[n] : offsets[n + 1]]`, longest first."""

    order: np.ndarray  # int32 [sequences], or int64 from 2**31 sequences on
    offsets: np.ndarray  # int64 [rows + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def pack(lengths: np.ndarray, capacity: int, most: int, key: int) -> Packing:
    """Assign sequences of these lengths, uint16 [N], to rows of `capacity` tokens, at most `most` in a row.

    Best fit, decreasing: a row takes the longest remaining length, then repeatedly the longest that still fits. Rows
    with the same lengths are made together. `key` shuffles the sequences of each length.
    """
    assert len(lengths) == 0 or lengths.max() <= capacity
    # The sequences by ascending length, in random order where lengths are equal
    draws = hash64(key, np.arange(len(lengths))) & _MIXED
    draws |= lengths.astype(np.uint64) << 40
    by_length = np.argsort(draws).astype(np.int32 if len(lengths) < 2**31 else np.int64)
    remaining = np.bincount(lengths, minlength=capacity + 1)
    next_one = np.cumsum(remaining) - remaining  # per length, the first sequence in `by_length` without a row
    parts, sizes = [], []
    for kind, times in _row_kinds(remaining, capacity, most):
        columns = np.empty((times, len(kind)), by_length.dtype)
        for column, length in enumerate(kind):
            columns[:, column] = by_length[next_one[length] : next_one[length] + times]
            next_one[length] += times
        parts.append(columns.ravel())
        sizes.append(np.full(times, len(kind), np.int64))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *sizes]))]).astype(np.int64)
    return Packing(np.concatenate([by_length[:0], *parts]), offsets)


def _row_kinds(counts: np.ndarray, capacity: int, most: int) -> list[tuple[list[int], int]]:
    """Pairs of (lengths in a row, number of such rows) for all sequences; `counts[n]` sequences have length n."""
    remaining = counts.tolist()
    remaining[0] = 0
    kinds = []
    longest = capacity
    while True:
        while longest and not remaining[longest]:
            longest -= 1
        if not longest:
            return kinds
        kind: list[int] = []
        room, length = capacity, longest
        while len(kind) < most and room:
            length = min(length, room)
            while length and remaining[length] <= kind.count(length):
                length -= 1
            if not length:
                break
            kind.append(length)
            room -= length
        times = min(remaining[length] // kind.count(length) for length in set(kind))
        for length in kind:
            remaining[length] -= times
        kinds.append((kind, times))


def pad_table(table: np.ndarray, key: BatchArray) -> np.ndarray:
    """Pad a table of single-sequence rows to the width of its key."""
    missing = key.width - table.shape[1]
    return np.pad(table, [(0, 0), (0, missing)], constant_values=key.filler) if missing else table


def table_widths(sentence_offsets: np.ndarray, first: np.ndarray, count: np.ndarray, longest: int) -> np.ndarray:
    """Choose a table width for each sequence, int64 [N], from a few widths up to `longest`.

    Short sequences of long rows are thus made in narrow tables. A sequence is `count` sentences from sentence `first`
    on, int64 [N, k] both. Leaves room for the special tokens of a pair, and for a [SEP] after each sentence.
    """
    tokens = sentence_offsets[first + count] - sentence_offsets[first]
    return range_widths((tokens + count).sum(axis=1, dtype=np.int64), longest)


def range_widths(tokens: np.ndarray, longest: int) -> np.ndarray:
    """Like `table_widths`, given the length of each sequence in tokens, int64 [N], without special tokens."""
    most = tokens + _SPECIAL
    steps = np.ceil(np.log2(np.maximum(most / _NARROWEST, 1)) / 2).astype(np.int64)
    return np.minimum(_NARROWEST << 2 * steps, longest)


Part = tuple[np.ndarray, Mapping[str, np.ndarray]]  # indices of some sequences, int64 [n], and their arrays


def pack_rows(
    parts: Sequence[Part], keys: Mapping[str, BatchArray], row: np.ndarray, rows: int
) -> dict[str, np.ndarray]:
    """Combine single-sequence rows into `rows` packed rows; `row`, int64 [N], ascending, is the row of each sequence.

    The arrays of each part may be narrower than the packed ones, which `keys` describes. Only the position of a
    sequence and its number in `sequence_ids` change.
    """
    # What precedes each sequence in its row: sequences (""), tokens ("sequence_ids"), and predictions (by `used` key)
    before = {"": before_in_row(row, np.ones_like(row))}
    for used in ("sequence_ids", *dict.fromkeys(key.used for key in keys.values() if key.used)):
        counts = np.zeros_like(row)
        for chosen, single in parts:
            counts[chosen] = np.count_nonzero(single[used] > 0, axis=1)
        before[used] = before_in_row(row, counts)
        room = keys[used]
        assert room.may_be_full or np.bincount(row, counts).max() <= room.width, f"{used}: over {room.width} in a row"
    packed = {name: np.full((rows, key.width), key.filler, key.dtype) for name, key in keys.items()}
    for chosen, single in parts:
        _put(packed, single, keys, row[chosen], {name: counts[chosen] for name, counts in before.items()})
    return packed


def _put(
    packed: Mapping[str, np.ndarray],
    single: Mapping[str, np.ndarray],
    keys: Mapping[str, BatchArray],
    row: np.ndarray,
    before: Mapping[str, np.ndarray],
) -> None:
    """Copy the arrays of sequences into the packed ones; `before` as in `pack_rows`, int64 [n] each."""
    slot, first = before[""], before["sequence_ids"]
    numbers = np.broadcast_to((slot + 1).astype(np.int32)[:, None], single["sequence_ids"].shape)

    @cache
    def cells(per: Per, width: int, used: str) -> tuple[np.ndarray, np.ndarray]:
        """A mask of the cells to copy, bool [n, w], and their indices in the flattened packed table."""
        if per == "token":
            mask = single["sequence_ids"] > 0
            place = first[:, None] + np.arange(mask.shape[1])
        elif per == "prediction":
            mask = single[used] > 0
            place = before[used][:, None] + np.cumsum(mask, axis=1) - 1
            mask = mask & (place < width)
        else:
            mask, place = np.ones((len(row), 1), bool), slot[:, None]
        return mask, (row[:, None] * width + place)[mask]

    for name, key in keys.items():
        mask, target = cells(key.per, key.width, key.used)
        values = numbers if name == "sequence_ids" else single[name]
        values = values + first.astype(np.int32)[:, None] if key.is_position else values
        packed[name].ravel()[target] = values[mask]
