"""Several examples of a batch in one row, each as it would be in a row of its own: less padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.finetune.rows import TaskRows
from bertjax.input.feed import Batch
from bertjax.input.packing import pack
from bertjax.text.ragged import before_in_row, places_in

# Kinds of tasks whose examples are a sequence each, and need nothing of others.
PACKED = ("sequence", "regression", "relevance", "tokens", "span")
_PLACES = ("cls_positions", "starts", "ends")  # that move with the example

# Every shape is a program to compile. Long rows leave fewer gaps at their ends, but cost more attention.
_LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)
_LONG_ENOUGH = 128
_ROWS_AT_LEAST = 8  # where examples are short enough for it: a few devices then all have work
_TOKENS_PER_SLOT = 8
_STEP_BEYOND = 128  # of lengths that are longer than all of a list


@dataclass(frozen=True)
class Places:
    """Where n examples lie in `rows` rows of `length` tokens with room for `slots` examples each; int64 [n]."""

    rows: int
    length: int
    slots: int
    example: np.ndarray  # its number among those that were given
    row: np.ndarray  # ascending
    slot: np.ndarray
    start: np.ndarray  # its first token in the row

    def within(self, rows: np.ndarray) -> Places:
        """Those in some of the rows (ascending), whose places are counted among these."""
        new = np.full(self.rows, -1)
        new[rows] = np.arange(len(rows))
        here = new[self.row] >= 0
        kept = (part[here] for part in (self.example, new[self.row], self.slot, self.start))
        return Places(len(rows), self.length, self.slots, *kept)


def find_places(lengths: np.ndarray, key: int, multiple: int = 1) -> Places:
    """Rows for examples of these lengths, int64 [n]; which of one length goes where is drawn under `key`.

    Nothing depends on `multiple` but the number of empty rows at the end, which makes that of all rows a multiple of
    it: so examples, and with them dropout's masks, are the same on every mesh.
    """
    total, longest = int(lengths.sum()), int(lengths.max())
    length = one_of_few(max(longest, min(_LONG_ENOUGH, -(-total // _ROWS_AT_LEAST))), _LENGTHS)
    slots = length // _TOKENS_PER_SLOT
    packing = pack(lengths, length, slots, key)
    row = np.repeat(np.arange(len(packing)), np.diff(packing.offsets))
    example = packing.order.astype(np.int64)
    return Places(
        -(-_few(len(packing)) // multiple) * multiple,
        length,
        slots,
        example,
        row,
        before_in_row(row, np.ones_like(row)),
        before_in_row(row, lengths[example]),
    )


def one_of_few(needed: int, lengths: Sequence[int]) -> int:
    """The first of some lengths, ascending, that is enough; of what is longer than all a multiple of 128."""
    beyond = -(-needed // _STEP_BEYOND) * _STEP_BEYOND
    return next((length for length in lengths if length >= needed), beyond)


def _few(rows: int) -> int:
    """So many rows, or of more than eight at most an eighth more: few numbers of rows come up."""
    step = 1 if rows <= 8 else max(2, 1 << (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def lay_out(rows: TaskRows, chosen: np.ndarray, places: Places, pad_id: int) -> Batch:
    """The batch of the examples `rows[chosen]` at their places.

    Arrays are those of `TaskRows`, [R, L] per token and [R, S] per example, with zeros (`label_weights` 0) where there
    is none; `sequence_ids` count the examples of a row from 1.
    """
    numbers = chosen[places.example]
    begin = places.row * places.length + places.start
    batch = rows.tokens_at(numbers, begin, (places.rows, places.length), pad_id)
    lengths = rows.lengths[numbers]
    batch["sequence_ids"].ravel()[places_in(begin, lengths)] = np.repeat(places.slot + 1, lengths)
    for key, array in rows.rows.items():
        assert array.shape[1:] == (1,), "packed rows are of kinds with one of each an example"
        table = np.zeros((places.rows, places.slots), array.dtype)
        moved = places.start.astype(array.dtype) if key in _PLACES else 0
        table[places.row, places.slot] = array[numbers, 0] + moved
        batch[key] = table
    return batch
