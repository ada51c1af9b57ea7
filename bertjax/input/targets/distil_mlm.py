"""Soft targets (DistilBERT, section 2), which are about the predictions of masked language modelling as they are."""

from __future__ import annotations

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Vocabulary
from bertjax.input.packing import BatchKey
from bertjax.input.targets.target import Make


class OfHiddenTokens:
    """No array of its own: the teacher's probabilities are computed on the device."""

    pairing = None
    of_records = None

    def keys(self, data: DataConfig) -> dict[str, BatchKey]:
        return {}

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: Split) -> Make:
        return lambda rows: {}


TARGET = OfHiddenTokens()
