"""The span boundary objective (SpanBERT, section 3.2): predict the tokens of a span from its two boundary tokens.

A span is a maximal run of masked tokens, so its boundary tokens are not masked. Only the first `SPAN_POSITIONS` tokens
of a longer span are predicted (facebookresearch/SpanBERT, masking.py).
"""

from __future__ import annotations

import numpy as np

from bertjax.config import SPAN_POSITIONS, DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.masking.options import first_of_run
from bertjax.input.packing import BatchArray
from bertjax.input.targets.mlm import USED, TokenPrediction
from bertjax.input.targets.target import Make, Sequences, Target


class SpanBoundaries(Target):
    """Adds the positions of the two boundary tokens for each masked token."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        if data.predict != "masked":
            raise ValueError(
                f"data.predict={data.predict!r}: no tokens are masked, so there are no spans; leave sbo out"
            )
        slots = TokenPrediction().keys(data)[USED].width
        return {
            "sbo_left": BatchArray("prediction", slots, np.int32, USED, is_position=True),
            "sbo_right": BatchArray("prediction", slots, np.int32, USED, is_position=True),
            "sbo_weights": BatchArray("prediction", slots, np.float32, USED),
        }

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:

        def make(rows: Sequences) -> dict[str, np.ndarray]:
            lengths = (rows.encoder["sequence_ids"] > 0).sum(axis=1)
            return span_boundaries(rows.arrays["mlm_positions"], rows.arrays[USED], lengths)

        return make


def span_boundaries(positions: np.ndarray, weights: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of the objective for predictions at `positions`, int32 [N, P], ascending where `weights` are above 0.

    `lengths`, int64 [N], is the number of tokens in each sequence, whose first token has position 0. A token has weight
    0 if it is not among the first `SPAN_POSITIONS` of its span, or if the span reaches an end of its sequence.
    """
    used = weights > 0
    # Give unused slots positions that are not adjacent to any other, so that they do not continue a span.
    separate = np.where(used, positions, -2 * (1 + np.arange(positions.shape[1])))
    left = first_of_run(separate) - 1
    right = -first_of_run(-separate[:, ::-1])[:, ::-1] + 1
    counts = used & (separate - left <= SPAN_POSITIONS) & (left >= 0) & (right < lengths[:, None])
    return {
        "sbo_left": np.where(counts, left, 0).astype(np.int32),
        "sbo_right": np.where(counts, right, 0).astype(np.int32),
        "sbo_weights": counts.astype(np.float32),
    }


TARGET = SpanBoundaries()
