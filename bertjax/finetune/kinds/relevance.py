"""Relevance: predict whether a passage answers a query (transformers' BertForSequenceClassification, one label)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.special import expit

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.kinds.kind import Card, Inference, Judged, require_pair
from bertjax.finetune.kinds.regression import NumericKind
from bertjax.finetune.metrics.classification import require_finite
from bertjax.training.objectives import Batch, Forward, Keys, Sums

_RANK = """\
from sentence_transformers import CrossEncoder

CrossEncoder("path/to/this/folder").predict([("a query", "a passage"), ("a query", "another passage")])"""


class RelevanceKind(NumericKind):
    """Labels are 0 or 1; a prediction is the probability of 1."""

    name, own_task = "relevance", "relevance"
    metrics = ("f1", "accuracy")
    problem_type = "multi_label_classification"  # one label, which may hold or not
    ranks = True
    pair = columns_wanted = "a query and a passage"
    text_columns, default_columns = (2, 2), ("text", "text_b")
    card = Card(
        "text-ranking",
        "scores how likely a passage answers a query",
        _RANK,
        '("a query", "a passage"), ("a query", "another passage")',
        "`logits` has a row per pair: the higher, the more relevant the passage",
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        logits, weights = self.logits(forward, batch, keys), batch["label_weights"]
        hits = ((logits > 0) == (batch["labels"] > 0.5)).astype(jnp.float32)
        nll = optax.sigmoid_binary_cross_entropy(logits, batch["labels"])
        return {"loss": jnp.sum(nll * weights), "accuracy": jnp.sum(hits * weights)}

    def soft_loss(self, ours: jax.Array, theirs: jax.Array) -> jax.Array:
        return optax.sigmoid_binary_cross_entropy(ours, jax.nn.sigmoid(theirs))

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        return (require_finite(logits)[:, 0] > 0).astype(np.int32)

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        chances, predicted = expit(outputs[:, 0].astype(np.float64)), self.predictions(outputs)
        certainty = np.where(predicted, chances, 1 - chances).tolist()
        names = ("not relevant", "relevant")
        return [
            Judged(example.texts, names[int(answer)], names[prediction], answer == prediction, share)
            for example, answer, prediction, share in zip(
                examples, answers.tolist(), predicted.tolist(), certainty, strict=True
            )
        ]

    def check_examples(self, examples: Sequence[TextExample], labels: Sequence[str]) -> None:
        for example in examples:
            if example.label not in (0, 1, None):
                raise ValueError(
                    f"{example.where}: label {example.label!r} is neither 0 (not relevant) nor 1 (relevant); correct it"
                )

    def shared_part(self, example: TextExample) -> Any:
        return example.texts[0]  # a query occurs with several passages

    def texts_in(self, value: Any, number: int) -> tuple[str, ...]:
        return require_pair(value, number, self.pair)

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[float]:
        return expit(outputs[:, 0].astype(np.float64)).tolist()


RELEVANCE = RelevanceKind()
