"""Divide batches into lanes, each with its own parts of a large text, so that a host reads only its share of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from bertjax.input.batches import Pairs, RowBatches, Spec, merge_rows, rows_of_batch
from bertjax.input.layout import TextView
from bertjax.input.windows import Lane
from bertjax.text.ragged import grouped


class LaneBatches:
    """The rows of a run, with the interface of `RowBatches`. Thread-safe.

    Row i of a batch belongs to lane i // (rows per lane). Each lane is a `RowBatches` over the parts of the text that
    are dealt to it, on whichever host. `make` opens a lane, when its first row is made.
    """

    def __init__(self, make: Callable[[Lane], RowBatches], lanes: int, global_batch_size: int) -> None:
        assert global_batch_size % lanes == 0
        self._make, self._batch_size, self._lane_rows = make, global_batch_size, global_batch_size // lanes
        self._lanes: list[RowBatches | None] = [None] * lanes
        self._lock = threading.Lock()
        first = self.lane(0)
        self.split, self.shares = first.split, first.shares

    def lane(self, number: int) -> RowBatches:
        """Open a lane, or return the open one."""
        with self._lock:
            lane = self._lanes[number] = self._lanes[number] or self._make(Lane(number, len(self._lanes)))
        return lane

    def release(self) -> None:
        """Drop all plans, as at the end of a stage."""
        with self._lock:
            self._lanes = [None] * len(self._lanes)

    @property
    def rows_per_epoch(self) -> int:
        """Estimated rows in an epoch of all lanes. Plans the first window of a lane."""
        return self.lane(0).rows_per_epoch

    @property
    def estimated_rows(self) -> int:
        """Estimated rows in an epoch of all lanes. Does not plan a large text."""
        return self.lane(0).estimated_rows

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its `rows`. Arguments and errors as in `rows_of_batch`."""
        return self.rows(rows_of_batch(step, global_batch_size, rows))

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Make the run's rows with these numbers, int64 [B]."""
        groups = [(at, self.lane(lane).rows(within)) for lane, at, within in self._locate(numbers)]
        return merge_rows(groups, self.spec(len(numbers)))

    def texts(self, numbers: np.ndarray) -> list[tuple[np.ndarray, TextView, Pairs]]:
        """Like `RowBatches.texts`."""
        return [
            (at[rows], text, pairs)
            for lane, at, within in self._locate(numbers)
            for rows, text, pairs in self.lane(lane).texts(within)
        ]

    def spec(self, batch_size: int) -> Spec:
        """Shape and dtype of every array of a batch."""
        return self.lane(0).spec(batch_size)

    def _locate(self, numbers: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Group rows by lane: (lane, indices into `numbers`, row numbers in the lane), int64 [n] the latter two."""
        step, within = np.divmod(np.asarray(numbers, np.int64), self._batch_size)
        lane, row = np.divmod(within, self._lane_rows)
        return [(number, at, step[at] * self._lane_rows + row[at]) for number, at in grouped(lane)]
