"""Cosine distillation of hidden states (DistilBERT, section 2), at every token but padding."""

from __future__ import annotations

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.packing import BatchArray
from bertjax.input.targets.target import Make, Sequences, Target


class EveryToken(Target):
    """Adds the array `name` with weight 1 for every token but padding."""

    def __init__(self, name: str) -> None:
        self._name = name

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        return {self._name: BatchArray("token", data.sequence_length, np.float32)}

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:

        def make(rows: Sequences) -> dict[str, np.ndarray]:
            return {self._name: (rows.encoder["sequence_ids"] > 0).astype(np.float32)}

        return make


TARGET = EveryToken("distil_cosine_weights")
