"""Multi-label classification: any number of labels may hold for a text. For imported models only, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

from bertjax.finetune.kinds.kind import Card, Inference
from bertjax.finetune.kinds.sequence import SequenceKind

_CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", "path/to/this/folder", top_k=None)  # the probability of every label
classify({"text": "a text", "text_pair": "and the second one, if it takes pairs"})"""


class LabelSet(NamedTuple):
    """The labels with a probability of one half or more, and the probability of every label."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]


class MultiLabelKind(SequenceKind):
    """A sigmoid for each label. There is no task of this kind, because our examples have one label each."""

    name, own_task = "multi_label", ""
    problem_type = "multi_label_classification"
    several_hold, learns_predictions = True, False
    card = Card(
        "text-classification",
        "finds the labels that hold for texts or pairs",
        _CLASSIFY,
        onnx_outputs="`logits` has a row per text, or per pair of texts, with a number for each label, which holds if "
        "it is above 0: {labels}",
    )

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        label_sets = []
        for shares in expit(outputs.astype(np.float64)).tolist():
            probabilities = dict(zip(model.labels, shares, strict=True))
            label_sets.append(LabelSet(tuple(label for label, p in probabilities.items() if p >= 0.5), probabilities))
        return label_sets

    def lines(self, prediction: Any) -> list[str]:
        return [", ".join(prediction.labels) or "no label", *super().lines(prediction)]


MULTI_LABEL = MultiLabelKind()
