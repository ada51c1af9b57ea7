"""Next sentence prediction (BERT, section 3.1): does B follow A, or is it from another document?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.packing import BatchArray
from bertjax.input.targets.target import FromRecords, Make, Pairing, Target

RECORDED_LABEL = "next_sentence_labels"  # feature of google-research/bert's records


@dataclass(frozen=True)
class PairLabels(Target):
    """Labels pairs: 0 if B follows A, else 1; weight 0 for rows without pairs."""

    pairing: Pairing | None = None
    from_records: FromRecords | None = None

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        slots = data.pair_slots
        return {
            "cls_positions": BatchArray("sequence", slots, np.int32, is_position=True),
            "pair_labels": BatchArray("sequence", slots, np.int32),
            "pair_weights": BatchArray("sequence", slots, np.float32),
        }

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        weight = float(data.rows == "pairs")
        return lambda rows: label_pairs(rows.pair_labels, weight)


def label_pairs(is_odd: np.ndarray, weight: float = 1.0) -> dict[str, np.ndarray]:
    """The arrays for sequences whose first token is [CLS]: label 1 where `is_odd`, bool [N]."""
    labels = is_odd[:, None].astype(np.int32)
    return {
        "cls_positions": np.zeros_like(labels),
        "pair_labels": labels,
        "pair_weights": np.full(labels.shape, weight, np.float32),
    }


TARGET = PairLabels(Pairing(random_b=True), lambda features: label_pairs(features[RECORDED_LABEL][:, 0] > 0))
