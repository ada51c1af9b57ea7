"""Well-formed random batches with uneven masks, for tests of the step without text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def random_batches(count: int, *, rows: int, length: int, predictions: int, vocab_size: int, seed: int = 0) -> Iterator:
    """Yield `count` batches with rows of 10 to `length` tokens and 1 to `predictions` masked positions, mostly few."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        lengths = rng.integers(10, length + 1, (rows, 1))
        real = (np.arange(length) < lengths).astype(np.int32)
        masked = np.minimum(rng.geometric(0.4, (rows, 1)), predictions)
        yield {
            "input_ids": rng.integers(1, vocab_size, (rows, length)).astype(np.int32) * real,
            "token_type_ids": ((np.arange(length) >= 6) * real).astype(np.int32),
            "sequence_ids": real,
            "mlm_positions": np.sort(rng.permuted(np.tile(np.arange(1, 9), (rows, 1)), axis=1)[:, :predictions]).astype(
                np.int32
            ),
            "mlm_labels": rng.integers(1, vocab_size, (rows, predictions)).astype(np.int32),
            "mlm_weights": (np.arange(predictions) < masked).astype(np.float32),
            "cls_positions": np.zeros((rows, 1), np.int32),
            "pair_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
            "pair_weights": np.ones((rows, 1), np.float32),
        }
