"""Which pairs share a row, and rows made of them: less padding, and each pair as it would be in a row of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.input.randomness import hash64
from bertjax.text.ragged import before_in_row

_MIXED = np.uint64(2**40 - 1)


@dataclass(frozen=True)
class Packing:
    """The rows of an epoch: row n holds the pairs `order[offsets[n] : offsets[n + 1]]`, longest first."""

    order: np.ndarray  # int32 [pairs], int64 where there are 2**31 pairs or more
    offsets: np.ndarray  # int64 [rows + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def pack(lengths: np.ndarray, capacity: int, most: int, key: int) -> Packing:
    """Put pairs of these lengths, uint16[N], in rows of `capacity` tokens, at most `most` to a row; each in one row.

    Rows are made by kind, not one by one: the longest length that is left, then again and again the longest that still
    fits, for as many rows as there are pairs to fill (best fit, decreasing). Which pair of a length goes where is drawn
    under `key`.
    """
    assert len(lengths) == 0 or lengths.max() <= capacity
    by_length = _shuffled_by_length(lengths, key)
    left = np.bincount(lengths, minlength=capacity + 1)
    next_of = np.cumsum(left) - left  # per length, the first pair of `by_length` that has no row yet
    parts, sizes = [], []
    for kind, times in _kinds_of_rows(left, capacity, most):
        columns = np.empty((times, len(kind)), by_length.dtype)
        for place, length in enumerate(kind):
            columns[:, place] = by_length[next_of[length] : next_of[length] + times]
            next_of[length] += times
        parts.append(columns.ravel())
        sizes.append(np.full(times, len(kind), np.int64))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.zeros(0, np.int64), *sizes]))]).astype(np.int64)
    return Packing(np.concatenate([by_length[:0], *parts]), offsets)


def _shuffled_by_length(lengths: np.ndarray, key: int) -> np.ndarray:
    """The numbers of the pairs in order of their lengths, in random order where those are equal."""
    draws = hash64(key, np.arange(len(lengths))) & _MIXED
    draws |= lengths.astype(np.uint64) << 40
    return np.argsort(draws).astype(np.int32 if len(lengths) < 2**31 else np.int64)


def _kinds_of_rows(counts: np.ndarray, capacity: int, most: int) -> list[tuple[list[int], int]]:
    """(lengths in a row, how many such rows) until no pair is left; `counts[n]` pairs have length n."""
    left = counts.tolist()
    left[0] = 0
    kinds = []
    longest = capacity
    while True:
        while longest and not left[longest]:
            longest -= 1
        if not longest:
            return kinds
        kind: list[int] = []
        room, length = capacity, longest
        while len(kind) < most and room:
            length = min(length, room)
            while length and left[length] <= kind.count(length):
                length -= 1
            if not length:
                break
            kind.append(length)
            room -= length
        times = min(left[length] // kind.count(length) for length in set(kind))
        for length in kind:
            left[length] -= times
        kinds.append((kind, times))


def pack_rows(
    single: dict[str, np.ndarray], row: np.ndarray, rows: int, predictions: int, pairs: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Rows of several pairs out of rows of one; `row` int64[N], ascending, says in which row each goes.

    Keys, dtypes and meaning as in the single rows, for `rows` rows of `predictions` predictions and `pairs` pairs.
    Nothing of a pair changes but where it lies.
    """
    length = single["input_ids"].shape[1]
    is_inside, is_used = single["sequence_ids"] > 0, single["mlm_weights"] > 0
    sizes, used = is_inside.sum(axis=1), is_used.sum(axis=1)
    slot = before_in_row(row, np.ones_like(row))
    first, first_prediction = before_in_row(row, sizes), before_in_row(row, used)

    def scatter(values: np.ndarray, shape: tuple[int, int], cells: np.ndarray, filler: int = 0) -> np.ndarray:
        table = np.full(shape, filler, values.dtype)
        table.ravel()[cells] = values
        return table

    tokens = (row * length + first)[:, None] + np.arange(length)
    predicted = (row * predictions + first_prediction)[:, None] + np.cumsum(is_used, axis=1) - 1
    place = row * pairs + slot
    numbered = np.broadcast_to((slot + 1).astype(np.int32)[:, None], is_inside.shape)
    positions = single["mlm_positions"] + first.astype(np.int32)[:, None]
    of_tokens = {
        "input_ids": (single["input_ids"], pad_id),
        "token_type_ids": (single["token_type_ids"], 0),
        "sequence_ids": (numbered, 0),
    }
    of_predictions = {
        "mlm_positions": positions,
        "mlm_labels": single["mlm_labels"],
        "mlm_weights": single["mlm_weights"],
    }
    of_pairs = {"cls_positions": first.astype(np.int32)} | {
        key: single[key][:, 0] for key in ("pair_labels", "pair_weights")
    }
    cells, predicted_cells = tokens[is_inside], predicted[is_used]
    return (
        {key: scatter(x[is_inside], (rows, length), cells, filler) for key, (x, filler) in of_tokens.items()}
        | {key: scatter(x[is_used], (rows, predictions), predicted_cells) for key, x in of_predictions.items()}
        | {key: scatter(x, (rows, pairs), place) for key, x in of_pairs.items()}
    )
