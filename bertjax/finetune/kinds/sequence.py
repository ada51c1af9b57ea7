"""Classification: predict a class for a text or a pair (transformers' BertForSequenceClassification)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

from bertjax.finetune.kinds.kind import Card, Inference
from bertjax.finetune.kinds.texts import TextKind
from bertjax.model.task_heads import SequenceNetwork
from bertjax.training.objectives import Batch, Forward, Keys
from bertjax.training.objectives.objective import MODEL

CLASSIFY = """\
from transformers import pipeline

classify = pipeline("text-classification", "path/to/this/folder")
classify({"text": "a text", "text_pair": "and the second one, if it takes pairs"})"""


class Prediction(NamedTuple):
    """The likeliest label of a text or a pair, and the probability of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]


class SequenceKind(TextKind):
    """Labels are classes; the metrics are accuracy and the mean F1 of the classes."""

    name, network, own_task = "sequence", SequenceNetwork, "classification"
    metrics = ("accuracy", "macro_f1")
    problem_type = "single_label_classification"
    names_outputs = learns_predictions = True
    card = Card(
        "text-classification",
        "classifies texts or pairs",
        CLASSIFY,
        onnx_outputs="`logits` has a row per text, or per pair of texts, with a number for each label: {labels}",
    )

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """[B, S, classes]."""
        return forward.network(network).sequence_logits(forward(batch, network), batch["cls_positions"], keys)

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        return model.sequence_logits(hidden, batch["cls_positions"])[:, 0]

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        predictions = []
        for shares in softmax(outputs.astype(np.float64), -1):
            best = int(shares.argmax())
            probabilities = dict(zip(model.labels, shares.tolist(), strict=True))
            predictions.append(Prediction(model.labels[best], float(shares[best]), probabilities))
        return predictions

    def lines(self, prediction: Any) -> list[str]:
        likeliest = sorted(prediction.probabilities.items(), key=lambda item: -item[1])
        return [f"{chance:6.1%}  {label}" for label, chance in likeliest]


SEQUENCE = SequenceKind()
