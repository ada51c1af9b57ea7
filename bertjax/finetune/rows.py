"""A task's examples as rows of tokens: what every encoder gives and batches are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.text.ragged import places_in


@dataclass(frozen=True)
class TaskRows:
    """n rows of unequal length, without padding: tokens of row i are [offsets[i], offsets[i + 1]) of each flat array.

    Attention is only within equal `sequence_ids` (from 1; 0 is padding, which no row has), where positions restart;
    `token_type_ids` are 0 for [CLS] A [SEP] and 1 for B [SEP]. What `tokens` and `rows` hold, by kind of task:

        all         tokens: input_ids, token_type_ids, sequence_ids, int32
        sequence    rows: cls_positions int32 [n, 1], labels int32 (regression: float32) [n, 1], label_weights
                    float32 [n, 1], 0 where there is no label
        choice      rows: cls_positions int32 [n, C], labels int32 [n], label_weights float32 [n]
        tokens      tokens: labels int32, 0 where unlabelled; label_weights float32, 1 on the first piece of each word
                    rows: cls_positions int32 [n, 1]
        span        rows: cls_positions int32 [n, 1], starts and ends int32 [n, 1], places in the row, 0 where it
                    lacks the answer; label_weights float32 [n, 1]
        vector      rows: cls_positions int32 [n, 2] of the two texts in each row; texts int32 [n, 2], the same number
                    for the same text; label_weights float32 [n]
    """

    offsets: np.ndarray  # int64 [n + 1]
    tokens: dict[str, np.ndarray]  # [offsets[n]] each
    rows: dict[str, np.ndarray]  # [n, ...] each

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """How many tokens each row has: int64 [n]."""
        return np.diff(self.offsets)

    def tokens_at(
        self, numbers: np.ndarray, begin: np.ndarray, shape: tuple[int, int], pad_id: int
    ) -> dict[str, np.ndarray]:
        """The tokens of some rows in tables of a shape: those of row `numbers[i]` from cell `begin[i]` on, int64 [n].

        Cells are counted along the rows of a table. Elsewhere is padding: `pad_id` for `input_ids`, 0 for the others.
        """
        sizes = self.lengths[numbers]
        source, target = places_in(self.offsets[numbers], sizes), places_in(begin, sizes)
        tables = {}
        for key, flat in self.tokens.items():
            tables[key] = np.full(shape, pad_id if key == "input_ids" else 0, flat.dtype)
            tables[key].ravel()[target] = flat[source]
        return tables
