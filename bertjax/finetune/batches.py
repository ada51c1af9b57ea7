"""Batches of a task: its examples in a new order every epoch, packed, or padded to the longest of each batch."""

from __future__ import annotations

import numpy as np

from bertjax.finetune.packing import find_places, lay_out, one_of_few
from bertjax.finetune.rows import TaskRows
from bertjax.input.feed import Batch, Rows
from bertjax.input.randomness import derive_key, permute

# Every length is a program to compile, and every token of padding is computed.
_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


class TaskBatches:
    """Rows of a task, epoch after epoch: row n of a run is place n mod R of epoch n // R, as in pretraining.

    A global batch is that many examples. Those of a kind in `PACKED` share rows, which are fewer then; others have a
    row each, as long as the longest needs, rounded up to one of a few lengths. All of the global batch counts, so that
    the rows of every process are equally long, and as many for each of its devices.
    """

    shares = None

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
        """`max_length`: of a row, where the position table ends. Packed rows are as many for each of the `shards` of a
        batch, and for each of the `microbatches` of those."""
        self._rows, self._pad_id, self._max_length, self._seed = rows, pad_id, max_length, seed
        self._packed, self._shards, self._microbatches = packed, shards, microbatches
        self.rows_per_epoch = len(rows)

    def batch(self, step: int, global_batch_size: int, rows: Rows = None) -> Batch:
        """What devices compute that would hold those rows of a global batch of single ones.

        Arrays are as `TaskRows` has them, but [B, L] per token; for packed ones see `lay_out`.
        """
        chosen = self._chosen(step, global_batch_size)
        if self._packed:
            return self._shared(step, chosen, rows)
        length = padded_length(int(self._rows.lengths[chosen].max()), self._max_length)
        return padded(self._rows, chosen if rows is None else chosen[rows], length, self._pad_id)

    def spec(self, batch_size: int) -> dict[str, tuple[tuple[int | None, ...], type[np.generic]]]:
        """Shape and dtype of every array; None is what differs from batch to batch."""
        first = None if self._packed else batch_size
        of_tokens = {key: ((first, None), array.dtype.type) for key, array in self._rows.tokens.items()}
        of_rows = {
            key: ((first, *((None,) if self._packed else array.shape[1:])), array.dtype.type)
            for key, array in self._rows.rows.items()
        }
        return of_tokens | of_rows

    def _chosen(self, step: int, count: int) -> np.ndarray:
        """The numbers of the examples of a step: int64 [count]."""
        epochs, places = np.divmod(np.arange(count) + step * count, self.rows_per_epoch)
        chosen = np.empty(count, np.int64)
        for epoch in np.unique(epochs):
            of_it = epochs == epoch
            key = derive_key(self._seed, "order of examples", int(epoch))
            chosen[of_it] = permute(places[of_it], self.rows_per_epoch, key)
        return chosen

    def _shared(self, step: int, chosen: np.ndarray, rows: Rows) -> Batch:
        key = derive_key(self._seed, "rows of examples", step)
        places = find_places(self._rows.lengths[chosen], key, self._shards * self._microbatches)
        if rows is not None:
            share = len(chosen) // self._shards
            shards = np.unique(np.arange(len(chosen))[rows] // share)
            of_each = np.arange(places.rows).reshape(self._shards, -1)
            places = places.within(of_each[shards].ravel())
        return lay_out(self._rows, chosen, places, self._pad_id)


def padded_length(needed: int, most: int) -> int:
    """The length of a batch whose longest row has `needed` tokens, where rows may have `most`."""
    return min(one_of_few(needed, _LENGTHS), max(most, needed))


def padded(rows: TaskRows, chosen: np.ndarray, length: int, pad_id: int) -> Batch:
    """Some rows by their numbers, each `length` tokens long; a row of number -1 is nothing but padding, of weight 0."""
    real = chosen >= 0
    numbers = np.where(real, chosen, 0)
    assert rows.lengths[chosen[real]].max(initial=0) <= length, "a row is longer than its batch"
    batch = rows.tokens_at(chosen[real], np.flatnonzero(real) * length, (len(chosen), length), pad_id)
    for key, array in rows.rows.items():
        batch[key] = array[numbers] * real.reshape(-1, *[1] * (array.ndim - 1)).astype(array.dtype)
    return batch
