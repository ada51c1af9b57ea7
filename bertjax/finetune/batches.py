"""Batches of a task: its examples in a new order every epoch, padded to the longest of each batch, or packed.

Packed, several examples share a row, each as it would be in a row of its own: less padding is computed.
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

_STEPS = 4  # of lengths above the table's; see `row_length`

# Long packed rows leave fewer gaps at their ends, but cost more attention.
_LONG_ENOUGH = 128
_ROWS_AT_LEAST = 8  # where examples are short enough for it, so that a few devices all have work
_TOKENS_PER_SLOT = 8


class TaskBatches:
    """Rows of a task, epoch after epoch: example n of a run is number n mod R of epoch n // R, as in pretraining.

    The global batch size is a number of examples. `packed`, they share fewer rows; else each has a row, as long as the
    longest needs, rounded up to one of a few lengths. The whole global batch decides that, so that the rows of every
    process are equally long, and there are as many for each of its devices. So the blocks of a network that has some
    are in training those of the longest example of a step; `Predictor` gives each example its own.
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
        """Set the rows up.

        `max_length` is the end of the position table. Each of the `shards` of a batch, and each of the `microbatches`
        of a shard, has as many packed rows.
        """
        self._rows, self._pad_id, self._max_length, self._seed = rows, pad_id, max_length, seed
        self._packed, self._shards, self._microbatches = packed, shards, microbatches
        self.rows_per_epoch = len(rows)

    def batch(self, step: int, global_batch_size: int, rows: Rows = None) -> Batch:
        """The arrays for the devices that have these rows of a global batch with one example per row.

        Arrays are those of `TaskRows`, but [B, L] per token; for packed rows see `lay_out`.
        """
        chosen = self._chosen(step, global_batch_size)
        if self._packed:
            return self._shared(step, chosen, rows)
        length = padded_length(int(self._rows.lengths[chosen].max()), self._max_length)
        return padded(self._rows, chosen if rows is None else chosen[rows], length, self._pad_id)

    def spec(self, batch_size: int) -> dict[str, tuple[tuple[int | None, ...], type[np.generic]]]:
        """Shape and dtype of every array; None for a dim that differs from batch to batch."""
        first = None if self._packed else batch_size
        of_tokens = {key: ((first, None), array.dtype.type) for key, array in self._rows.tokens.items()}
        of_rows = {
            key: ((first, *((None,) if self._packed else array.shape[1:])), array.dtype.type)
            for key, array in self._rows.rows.items()
        }
        return of_tokens | of_rows

    def _chosen(self, step: int, count: int) -> np.ndarray:
        """The numbers of the examples of a step: int64 [count]."""
        epochs, order = np.divmod(np.arange(count) + step * count, self.rows_per_epoch)
        chosen = np.empty(count, np.int64)
        for epoch in np.unique(epochs):
            of_it = epochs == epoch
            key = derive_key(self._seed, "order of examples", int(epoch))
            chosen[of_it] = permute(order[of_it], self.rows_per_epoch, key)
        return chosen

    def _shared(self, step: int, chosen: np.ndarray, rows: Rows) -> Batch:
        key = derive_key(self._seed, "rows of examples", step)
        layout = pack_examples(self._rows.lengths[chosen], key, self._shards * self._microbatches)
        if rows is not None:
            share = len(chosen) // self._shards
            shards = np.unique(np.arange(len(chosen))[rows] // share)
            of_each = np.arange(layout.rows).reshape(self._shards, -1)
            layout = layout.within(of_each[shards].ravel())
        return lay_out(self._rows, chosen, layout, self._pad_id)


def padded_length(needed: int, most: int) -> int:
    """The length of a batch whose longest row has `needed` tokens, where rows may have `most`."""
    return min(row_length(needed, _STEPS, fine=True), max(most, needed))


def padded(rows: TaskRows, chosen: np.ndarray, length: int, pad_id: int) -> Batch:
    """The rows of these numbers, each `length` tokens long; a row of number -1 is padding, of weight 0."""
    real = chosen >= 0
    numbers = np.where(real, chosen, 0)
    assert rows.lengths[chosen[real]].max(initial=0) <= length, "a row is longer than its batch"
    batch = rows.tokens_at(chosen[real], np.flatnonzero(real) * length, (len(chosen), length), pad_id)
    for key, array in rows.rows.items():
        batch[key] = array[numbers] * real.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
    return batch


@dataclass(frozen=True)
class PackedLayout:
    """The layout of n examples in `rows` rows of `length` tokens, each with `slots` slots for examples; int64 [n]."""

    rows: int
    length: int
    slots: int
    example: np.ndarray  # its number among those that were given
    row: np.ndarray  # ascending
    slot: np.ndarray
    start: np.ndarray  # its first token in the row

    def within(self, rows: np.ndarray) -> PackedLayout:
        """The layout of some of the rows (ascending), which are counted again."""
        new = np.full(self.rows, -1)
        new[rows] = np.arange(len(rows))
        here = new[self.row] >= 0
        kept = (part[here] for part in (self.example, new[self.row], self.slot, self.start))
        return PackedLayout(len(rows), self.length, self.slots, *kept)


def pack_examples(lengths: np.ndarray, key: int, multiple: int = 1) -> PackedLayout:
    """Rows for examples of these lengths, int64 [n]; the order of examples of equal length is drawn under `key`.

    `multiple` decides only how many empty rows are at the end, which make the number of rows a multiple of it: so
    examples, and with them dropout's masks, are in the same rows on every mesh.
    """
    total, longest = int(lengths.sum()), int(lengths.max())
    # Packed rows come in several numbers too, so they have fewer lengths.
    length = row_length(max(longest, min(_LONG_ENOUGH, -(-total // _ROWS_AT_LEAST))), _STEPS)
    slots = length // _TOKENS_PER_SLOT
    packing = pack(lengths, length, slots, key)
    row = np.repeat(np.arange(len(packing)), np.diff(packing.offsets))
    example = packing.order.astype(np.int64)
    return PackedLayout(
        -(-_few(len(packing)) // multiple) * multiple,
        length,
        slots,
        example,
        row,
        before_in_row(row, np.ones_like(row)),
        before_in_row(row, lengths[example]),
    )


def _few(rows: int) -> int:
    """The number of rows, rounded up where it is over eight, by an eighth at most, so that few numbers occur."""
    step = 1 if rows <= 8 else max(2, 1 << (rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def lay_out(rows: TaskRows, chosen: np.ndarray, layout: PackedLayout, pad_id: int) -> Batch:
    """The batch of the examples `rows[chosen]` in this layout.

    Arrays are those of `TaskRows`, [R, L] per token and [R, S] per example, with zeros (`label_weights` 0) in empty
    slots; `sequence_ids` count the examples of a row from 1.
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
