"""Batches in lanes, each with its own parts of a large text, so that a host reads only its share of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from bertjax.input.batches import PairBatches, Pairs, Spec, merge_rows, rows_of_batch
from bertjax.input.layout import Split
from bertjax.input.windows import Lane
from bertjax.text.ragged import grouped


class LaneBatches:
    """The rows of a run, with the interface of `PairBatches`: row i of a batch is of lane i // (rows of a lane).

    Lane n is a `PairBatches` of its own over the parts of the text that are dealt to it, whichever host asks for its
    rows; it is opened with its first row. `make` makes the batches of a lane. Thread-safe.
    """

    def __init__(self, make: Callable[[Lane], PairBatches], lanes: int, global_batch_size: int) -> None:
        assert global_batch_size % lanes == 0
        self._make, self._batch_size, self._lane_rows = make, global_batch_size, global_batch_size // lanes
        self._lanes: list[PairBatches | None] = [None] * lanes
        self._lock = threading.Lock()
        first = self.lane(0)
        self.split, self.shares = first.split, first.shares

    def lane(self, number: int) -> PairBatches:
        """The batches of a lane."""
        with self._lock:
            lane = self._lanes[number] = self._lanes[number] or self._make(Lane(number, len(self._lanes)))
        return lane

    def release(self) -> None:
        """Forget what was planned, as at the end of a stage."""
        with self._lock:
            self._lanes = [None] * len(self._lanes)

    @property
    def rows_per_epoch(self) -> int:
        """About the number of rows in an epoch of all lanes."""
        return self.lane(0).rows_per_epoch

    @property
    def estimated_rows(self) -> int:
        """About the number of rows in an epoch of all lanes, without a plan."""
        return self.lane(0).estimated_rows

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its `rows`. Arguments and errors are those of `rows_of_batch`."""
        return self.rows(rows_of_batch(step, global_batch_size, rows))

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the run with these numbers, int64 [B]."""
        groups = [(at, self.lane(lane).rows(within)) for lane, at, within in self._located(numbers)]
        return merge_rows(groups, self.spec(len(numbers)))

    def texts(self, numbers: np.ndarray) -> list[tuple[np.ndarray, Split, Pairs]]:
        """Like `PairBatches.texts`."""
        return [
            (at[rows], text, pairs)
            for lane, at, within in self._located(numbers)
            for rows, text, pairs in self.lane(lane).texts(within)
        ]

    def spec(self, batch_size: int) -> Spec:
        """Shape and dtype of every array of a batch of that many rows."""
        return self.lane(0).spec(batch_size)

    def _located(self, numbers: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """Of each lane that has some of these rows: which they are, and their numbers in the lane; int64 [n] both."""
        step, within = np.divmod(np.asarray(numbers, np.int64), self._batch_size)
        lane, row = np.divmod(within, self._lane_rows)
        return [(number, at, step[at] * self._lane_rows + row[at]) for number, at in grouped(lane)]
