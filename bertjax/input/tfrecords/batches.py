"""Make batch k as a pure function of (records, seed, k).

Rows and masks were drawn when the records were made; a run only draws the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import Spec, batch_spec, rows_of_batch
from bertjax.input.layout import Vocabulary
from bertjax.input.randomness import derive_key, permute
from bertjax.input.tfrecords.record_files import RecordFile
from bertjax.input.tfrecords.rows import RECORDED, RowShape, Segments, parse, rows_from_features, unmasked_segments
from bertjax.text.ragged import grouped

_AT_A_TIME = 1 << 10  # rows that `texts` reads at once


@dataclass(frozen=True)
class RecordView:
    """Selected records of several files, as one sequence of rows of the same size."""

    files: tuple[RecordFile, ...]
    chosen: tuple[np.ndarray, ...]  # for each file, its selected records, int64

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.files else 0

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([len(chosen) for chosen in self.chosen])

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map numbers in the view, int64 [n], to files and records within them, int64 [n] both."""
        home = np.searchsorted(self._ends, numbers, side="right")
        return home, np.concatenate(self.chosen)[numbers]

    def read(self, numbers: np.ndarray) -> list[bytes]:
        """Read records by their numbers in the view, int64 [n]. Raises ValueError like `RecordFile.read`."""
        home, record = self.locate(numbers)
        contents = [b""] * len(numbers)
        for file, rows in grouped(home):
            for row, content in zip(rows.tolist(), self.files[file].read(record[rows]), strict=True):
                contents[row] = content
        return contents

    def names(self, numbers: np.ndarray) -> list[str]:
        """Name the file and record of each number."""
        home, record = self.locate(numbers)
        return [f"{self.files[file].name}, record {n}" for file, n in zip(home.tolist(), record.tolist(), strict=True)]


class RecordBatches:
    """The rows of a run over records, with the interface of `bertjax.input.batches.RowBatches`. Thread-safe.

    Row n of a run is row n mod R of epoch n // R, where R = `rows_per_epoch` is the number of records; an epoch reads
    each record once. Raises ValueError for an objective whose arrays are not in records.
    """

    shares = None

    def __init__(
        self,
        view: RecordView,
        vocabulary: Vocabulary,
        data: DataConfig,
        seed: int,
        objectives: Sequence[str] = tuple(RECORDED),
    ) -> None:
        require_recorded(objectives)
        self._view, self._vocabulary, self._data, self._seed = view, vocabulary, data, seed
        self._objectives = tuple(objectives)
        self.rows_per_epoch = self.estimated_rows = len(view)

    def release(self) -> None:
        """Do nothing: there are no plans."""

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its `rows`.

        Raises ValueError like `rows_of_batch`, and for a damaged or impossible record.
        """
        return self.rows(rows_of_batch(step, global_batch_size, rows))

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Make the run's rows with these numbers, int64[B], as the arrays that `spec` describes."""
        if not len(numbers):
            return {key: np.zeros(shape, dtype) for key, (shape, dtype) in self.spec(0).items()}
        records = self._records(numbers)

        def name(row: int) -> str:
            return self._view.names(records[[row]])[0]

        features = parse(self._view.read(records), RowShape.of(self._data), name)
        return rows_from_features(features, self._vocabulary, name, self._objectives)

    def names(self, numbers: np.ndarray) -> list[str]:
        """Name the file and record of each of the run's rows with these numbers, int64 [n]."""
        return self._view.names(self._records(numbers))

    def _records(self, numbers: np.ndarray) -> np.ndarray:
        """Map row numbers of the run to record numbers in the view."""
        epochs, within = np.divmod(np.asarray(numbers, np.int64), self.rows_per_epoch)
        chosen = np.empty_like(within)
        for epoch, rows in grouped(epochs):
            chosen[rows] = permute(within[rows], self.rows_per_epoch, derive_key(self._seed, "records", epoch))
        return chosen

    def spec(self, batch_size: int) -> Spec:
        """Shape and dtype of every array of a batch, in order of the keys."""
        return batch_spec(self._data, batch_size, self._objectives)

    def texts(self, most: int) -> Iterator[Segments]:
        """The text of at most `most` rows of the first epoch, in parts."""
        stop = min(most, self.rows_per_epoch)
        for first in range(0, stop, _AT_A_TIME):
            yield unmasked_segments(self.rows(np.arange(first, min(first + _AT_A_TIME, stop))), self._vocabulary)


def require_recorded(objectives: Sequence[str]) -> None:
    """Raise ValueError for an objective whose arrays are not in records."""
    if missing := [name for name in objectives if name not in RECORDED]:
        raise ValueError(
            f"training.objectives={tuple(objectives)}: records of create_pretraining_data.py have no arrays "
            f"for {', '.join(missing)}; choose from {', '.join(RECORDED)}, or pretrain from text"
        )
