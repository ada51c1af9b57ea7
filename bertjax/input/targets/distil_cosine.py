"""Directions of hidden states (DistilBERT, section 2): every token but padding has a weight."""

from __future__ import annotations

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Vocabulary
from bertjax.input.packing import BatchKey
from bertjax.input.targets.target import Make, Sequences


class EveryToken:
    """The tokens whose vectors are compared."""

    pairing = None

    def keys(self, data: DataConfig) -> dict[str, BatchKey]:
        """As `Target` has it."""
        return {"distil_cosine_weights": BatchKey("token", data.sequence_length, np.float32)}

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: Split) -> Make:
        """As `Target` has it."""

        def make(rows: Sequences) -> dict[str, np.ndarray]:
            return {"distil_cosine_weights": (rows.encoder["sequence_ids"] > 0).astype(np.float32)}

        return make


TARGET = EveryToken()
