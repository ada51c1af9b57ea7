"""Left-to-right language modelling: predict the next token at every position, with causal attention."""

from __future__ import annotations

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.packing import BatchArray
from bertjax.input.targets.mlm import next_tokens, prediction_arrays
from bertjax.input.targets.target import Make, Sequences, Target


class NextTokenPrediction(Target):
    """Predicts the next token at every position but the last of each sequence; nothing is masked."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        return prediction_arrays(data.sequence_length - 1, prefix="clm")

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        def make(rows: Sequences) -> dict[str, np.ndarray]:
            return next_tokens(rows.encoder["input_ids"], rows.encoder["sequence_ids"], prefix="clm")

        return make


TARGET = NextTokenPrediction()
