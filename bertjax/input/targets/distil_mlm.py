"""Soft targets (DistilBERT, section 2) for masked language modelling."""

from __future__ import annotations

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.packing import BatchArray
from bertjax.input.targets.target import Make, Target


class SoftTargets(Target):
    """Adds no arrays: the teacher computes its probabilities on the device."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        return {}

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        return lambda rows: {}


TARGET = SoftTargets()
