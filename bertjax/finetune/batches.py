"""Batches of a task: examples in a new order every epoch, padded to the longest of each batch, or packed.

In packed batches several examples share a row, without changing each other's result. They have less padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.finetune.encoding.rows import TaskRows
from bertjax.input.feed import Batch, Rows
from bertjax.input.lengths import row_length
from bertjax.input.packing import pack
from bertjax.input.randomness import derive_key, permute
from bertjax.text.ragged import before_in_row, range_indices

_STEPS = 4  # lengths between two powers of two; see `row_length`

# Long packed rows leave fewer gaps at their ends, but cost more attention.
_PACKED_LENGTH = 128
_LEAST_ROWS = 8  # in a batch whose examples are short enough, so that several devices have work
_TOKENS_PER_SLOT = 8


class TaskBatches:
    """Rows of a task, epoch after epoch: example n of a run is number n mod R of epoch n // R, as in pretraining.

    The global batch size counts examples. They share rows if `packed`; else each has a row. The longest example of the
    global batch decides the length of rows, rounded up to one of a few, so that every process has the same shapes. In
    training, block-sparse attention therefore uses the blocks of the step's longest example; `Predictor` gives each
    example its own.
    """

    shares: np.ndarray | None = None

    def __init__(
        self,
        rows: TaskRows,
        pad_id: int,
        max_length: int,
        seed: int,
        *,
        packed: bool = False,
        shards: int = 1,
        microbatches: int = 1,
    ) -> None:
        """Take the rows and the end of the position table, `max_length`.

        Packed rows are divided equally over the `shards` of a batch and the `microbatches` of a shard.
        """
        self._rows, self._pad_id, self._max_length, self._seed = rows, pad_id, max_length, seed
        self._packed, self._shards, self._microbatches = packed, shards, microbatches
        self.rows_per_epoch = self.estimated_rows = len(rows)

    def release(self) -> None:
        """Do nothing: no plan of an epoch is kept in memory."""

    def batch(self, step: int, global_batch_size: int, rows: Rows = None) -> Batch:
        """Build the arrays of a step for the devices that hold `rows` of its global batch; all rows if None.

        `rows` counts one example per row, packed or not. Arrays per token are [B, L]; for packed rows see `lay_out`.
        """
        # 1. The numbers of the step's examples, int64 [global_batch_size]
        epochs, order = np.divmod(np.arange(global_batch_size) + step * global_batch_size, self.rows_per_epoch)
        chosen = np.empty(global_batch_size, np.int64)
        for epoch in np.unique(epochs):
            in_epoch = epochs == epoch
            key = derive_key(self._seed, "order of examples", int(epoch))
            chosen[in_epoch] = permute(order[in_epoch], self.rows_per_epoch, key)

        # 2. A row for each
        if not self._packed:
            length = padded_length(int(self._rows.lengths[chosen].max()), self._max_length)
            return padded(self._rows, chosen if rows is None else chosen[rows], length, self._pad_id)

        # 3. Or packed rows: the shards that these devices hold
        key = derive_key(self._seed, "rows of examples", step)
        layout = pack_examples(self._rows.lengths[chosen], key, self._shards * self._microbatches)
        if rows is not None:
            share = len(chosen) // self._shards
            shards = np.unique(np.arange(len(chosen))[rows] // share)
            rows_by_shard = np.arange(layout.rows).reshape(self._shards, -1)
            layout = layout.within(rows_by_shard[shards].ravel())
        return lay_out(self._rows, chosen, layout, self._pad_id)

    def spec(self, batch_size: int) -> dict[str, tuple[tuple[int | None, ...], type[np.generic]]]:
        """Shape and dtype of every array; None for a dim that differs from batch to batch."""
        first = None if self._packed else batch_size
        tokens = {key: ((first, None), array.dtype.type) for key, array in self._rows.tokens.items()}
        rows = {
            key: ((first, *((None,) if self._packed else array.shape[1:])), array.dtype.type)
            for key, array in self._rows.rows.items()
        }
        return tokens | rows


def padded_length(needed: int, most: int) -> int:
    """The length of a batch whose longest row has `needed` tokens; `most` is the end of the position table."""
    return min(row_length(needed, _STEPS, fine=True), max(most, needed))


def padded(rows: TaskRows, chosen: np.ndarray, length: int, pad_id: int) -> Batch:
    """The rows with these numbers, each `length` tokens long; number -1 is a row of padding with weight 0."""
    real = chosen >= 0
    numbers = np.where(real, chosen, 0)
    assert rows.lengths[chosen[real]].max(initial=0) <= length, "a row is longer than its batch"
    batch = rows.tokens_at(chosen[real], np.flatnonzero(real) * length, (len(chosen), length), pad_id)
    for key, array in rows.rows.items():
        batch[key] = array[numbers] * real.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
    return batch


@dataclass(frozen=True)
class PackedLayout:
    """The layout of n examples in `rows` rows of `length` tokens and `slots` slots each; arrays are int64 [n]."""

    rows: int
    length: int
    slots: int
    example: np.ndarray  # the number of an example, in the order of rows
    row: np.ndarray  # ascending
    slot: np.ndarray
    start: np.ndarray  # the example's first token in the row

    def within(self, rows: np.ndarray) -> PackedLayout:
        """The layout of some of the rows (ascending), renumbered from 0."""
        numbers = np.full(self.rows, -1)
        numbers[rows] = np.arange(len(rows))
        row = numbers[self.row]
        here = row >= 0
        return PackedLayout(
            len(rows), self.length, self.slots, self.example[here], row[here], self.slot[here], self.start[here]
        )


def pack_examples(lengths: np.ndarray, key: int, multiple: int = 1) -> PackedLayout:
    """Pack examples of these lengths, int64 [n]; `key` draws the order of examples of equal length.

    Empty rows at the end make the number of rows a multiple of `multiple`. Examples, and dropout's masks, are in the
    same rows on every mesh.
    """
    total, longest = int(lengths.sum()), int(lengths.max())
    # The number of rows varies too, so that fewer lengths are compiled.
    length = row_length(max(longest, min(_PACKED_LENGTH, -(-total // _LEAST_ROWS))), _STEPS)
    slots = length // _TOKENS_PER_SLOT
    packing = pack(lengths, length, slots, key)
    row = np.repeat(np.arange(len(packing)), np.diff(packing.offsets))
    example = packing.order.astype(np.int64)
    # More than eight rows are rounded up, by an eighth at most, so that few numbers occur.
    rows = len(packing)
    step = 1 if rows <= 8 else max(2, 1 << (rows - 1).bit_length() - 4)
    rows = -(-rows // step) * step
    return PackedLayout(
        -(-rows // multiple) * multiple,
        length,
        slots,
        example,
        row,
        before_in_row(row, np.ones_like(row)),
        before_in_row(row, lengths[example]),
    )


def lay_out(rows: TaskRows, chosen: np.ndarray, layout: PackedLayout, pad_id: int) -> Batch:
    """The batch of the examples `rows[chosen]` in this layout.

    It has the arrays of `TaskRows`, [R, L] per token and [R, S] per example, with zeros (`label_weights` 0) in empty
    slots; `sequence_ids` number the examples of a row from 1.
    """
    numbers = chosen[layout.example]
    begin = layout.row * layout.length + layout.start
    batch = rows.tokens_at(numbers, begin, (layout.rows, layout.length), pad_id)
    lengths = rows.lengths[numbers]
    batch["sequence_ids"].ravel()[range_indices(begin, lengths)] = np.repeat(layout.slot + 1, lengths)
    for key, array in rows.rows.items():
        assert array.shape[1:] == (1,), "packed rows are for kinds with one value per example"
        table = np.zeros((layout.rows, layout.slots), array.dtype)
        moved = layout.start.astype(array.dtype) if key in rows.positions else 0
        table[layout.row, layout.slot] = array[numbers, 0] + moved
        batch[key] = table
    return batch
