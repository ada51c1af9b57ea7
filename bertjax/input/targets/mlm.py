"""Prediction of masked tokens, or of the next token at every position."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.masking.counts import COUNTS
from bertjax.input.masking.options import changed_options, check_masking, most_predictions
from bertjax.input.masking.rule import MaskRule, mask_tokens
from bertjax.input.packing import BatchArray
from bertjax.input.targets.target import Make, Sequences, Target

USED = "mlm_weights"  # above 0 in the slots that hold a prediction


class HiddenTokens:
    """Masked language modelling (BERT, section 3.1)."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        check_masking(data)
        return prediction_arrays(most_predictions(data), COUNTS[data.mask_count].may_be_full)

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        rule = MaskRule.of(data, vocabulary, split)
        plane = rule.unit.plane
        reads_plane = rule.unit.needs_words and split.has_plane(plane)

        def make(rows: Sequences) -> dict[str, np.ndarray]:
            ids, text = rows.encoder["input_ids"], rows.text
            continues = split.continues(text.starts, text.lengths, plane) if reads_plane else None
            if data.mask_special:
                candidates, special = rows.encoder["sequence_ids"] > 0, 0
                if continues is not None:
                    row_continues = np.zeros(candidates.shape, bool)  # special tokens do not continue a unit
                    row_continues[text.is_text] = continues
                    continues = row_continues[candidates]
            else:
                candidates = text.is_text
                special = rows.encoder["sequence_ids"].sum(axis=1) - candidates.sum(axis=1)
            masked, predictions = mask_tokens(ids, candidates, rows.keys, rule, special, continues)
            return {"input_ids": masked, **predictions}

        return make


class NextTokens:
    """Left-to-right language modelling (BERT, section 5.1), without masks."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        for key in changed_options(data):
            raise ValueError(
                f"data.{key}={getattr(data, key)!r} with data.predict={data.predict!r} has no effect, because nothing "
                "is masked; leave it at its default"
            )
        return prediction_arrays(data.sequence_length - 1)

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        return lambda rows: next_tokens(rows.encoder["input_ids"], rows.encoder["sequence_ids"])


_PREDICTED = {"masked": HiddenTokens(), "next": NextTokens()}


class TokenPrediction(Target):
    """The predictions that `data.predict` names."""

    def keys(self, data: DataConfig) -> dict[str, BatchArray]:
        return _PREDICTED[data.predict].keys(data)

    def prepare(self, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Make:
        return _PREDICTED[data.predict].prepare(data, vocabulary, split)

    @staticmethod
    def from_records(features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            "mlm_positions": features["masked_lm_positions"].astype(np.int32),
            "mlm_labels": features["masked_lm_ids"].astype(np.int32),
            "mlm_weights": features["masked_lm_weights"],
        }


def prediction_arrays(slots: int, may_be_full: bool = False, prefix: str = "mlm") -> dict[str, BatchArray]:
    """The arrays of predictions: positions, labels and weights, which are 1 in used slots."""
    used = f"{prefix}_weights"
    return {
        f"{prefix}_positions": BatchArray("prediction", slots, np.int32, used, is_position=True),
        f"{prefix}_labels": BatchArray("prediction", slots, np.int32, used),
        used: BatchArray("prediction", slots, np.float32, used, may_be_full=may_be_full),
    }


def next_tokens(input_ids: np.ndarray, sequence_ids: np.ndarray, prefix: str = "mlm") -> dict[str, np.ndarray]:
    """Predict the next token at every position but the last of each sequence.

    `input_ids` and `sequence_ids` are int32 [B, L]. Returns the arrays of `prediction_arrays` with L - 1 slots.
    """
    has_next = (sequence_ids[:, 1:] == sequence_ids[:, :-1]) & (sequence_ids[:, 1:] > 0)
    positions = np.broadcast_to(np.arange(has_next.shape[1], dtype=np.int32), has_next.shape)
    return {
        f"{prefix}_positions": np.where(has_next, positions, 0),
        f"{prefix}_labels": np.where(has_next, input_ids[:, 1:], 0),
        f"{prefix}_weights": has_next.astype(np.float32),
    }


TARGET = TokenPrediction()
