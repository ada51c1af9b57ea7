"""Multi-label classifiers of transformers: any number of labels holds for a text. They are used, not trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

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
    """Each label holds or not (a sigmoid for each). There is no task of it: an example of ours has one label."""

    name, own_task = "multi_label", ""
    problem_type = "multi_label_classification"
    learns_predictions = False
    card = Card(
        "text-classification",
        "finds the labels that hold for texts or pairs",
        _CLASSIFY,
        onnx_outputs="`logits` has a row per text, or per pair of texts, with a number for each label, which holds if "
        "it is above 0: {labels}",
    )

    def decode(self, model: Inference, given: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        """A `LabelSet` for each input."""
        found = []
        for shares in 1 / (1 + np.exp(-outputs.astype(np.float64))):
            probabilities = dict(zip(model.labels, shares.tolist(), strict=True))
            found.append(LabelSet(tuple(label for label, p in probabilities.items() if p >= 0.5), probabilities))
        return found

    def lines(self, prediction: Any) -> list[str]:
        """The labels that hold, then all with their probabilities, the likeliest first."""
        likeliest = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
        return [", ".join(prediction.labels) or "no label", *(f"{chance:6.1%}  {label}" for label, chance in likeliest)]


MULTI_LABEL = MultiLabelKind()
