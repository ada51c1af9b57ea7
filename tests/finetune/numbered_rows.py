"""Rows whose tokens identify their row."""

from __future__ import annotations

import numpy as np

from bertjax.finetune.encoding.rows import TaskRows


def numbered_rows(lengths: list[int], spacing: int = 100, first_label: int = 0) -> TaskRows:
    """Make rows: row i has the tokens i * spacing, i * spacing + 1, ..., and the label `first_label` + i."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.concatenate([spacing * number + np.arange(length) for number, length in enumerate(lengths)])
    tokens = {"input_ids": ids.astype(np.int32), "sequence_ids": np.ones(len(ids), np.int32)}
    labels = first_label + np.arange(len(lengths), dtype=np.int32)[:, None]
    ones, zeros = np.ones((len(lengths), 1), np.float32), np.zeros((len(lengths), 1), np.int32)
    return TaskRows(offsets, tokens, {"labels": labels, "label_weights": ones, "cls_positions": zeros})
