"""Relevance: whether a passage answers a query (transformers' BertForSequenceClassification with one label)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample, require_judgements
from bertjax.finetune.kinds.kind import Card, Inference, pair_of
from bertjax.finetune.kinds.regression import NumericKind
from bertjax.finetune.metrics.classification import require_finite
from bertjax.training.objectives import Batch, Forward, Keys, Sums

_RANK = """\
from sentence_transformers import CrossEncoder

CrossEncoder("path/to/this/folder").predict([("a query", "a passage"), ("a query", "another passage")])"""


class RelevanceKind(NumericKind):
    """Labels are 0 or 1, predictions the probability of 1; queries come again with other passages."""

    name, own_task = "relevance", "relevance"
    metrics = ("f1", "accuracy")
    problem_type = "multi_label_classification"  # one label, which may hold or not
    ranks = True
    text_columns, default_columns, columns_wanted = (2, 2), ("text", "text_b"), "a query and a passage"
    card = Card(
        "text-ranking",
        "scores how likely a passage answers a query",
        _RANK,
        '("a query", "a passage"), ("a query", "another passage")',
        "`logits` has a row per pair: the higher, the more relevant the passage",
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """Binary cross entropy and accuracy."""
        logits, weights = self.logits(forward, batch, keys), batch["label_weights"]
        hits = ((logits > 0) == (batch["labels"] > 0.5)).astype(jnp.float32)
        nll = optax.sigmoid_binary_cross_entropy(logits, batch["labels"])
        return {"loss": jnp.sum(nll * weights), "accuracy": jnp.sum(hits * weights)}

    def soft_loss(self, ours: jax.Array, theirs: jax.Array) -> jax.Array:
        """The binary cross entropy of probabilities."""
        return optax.sigmoid_binary_cross_entropy(ours, jax.nn.sigmoid(theirs))

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        """1 where the probability is over one half, else 0: int32 [n]."""
        return (require_finite(logits)[:, 0] > 0).astype(np.int32)

    def check_examples(self, examples: Sequence[TextExample], labels: Sequence[str]) -> None:
        """Raise ValueError naming the line of a label that is neither 0 nor 1."""
        require_judgements(examples)

    def shared_part(self, example: TextExample) -> Any:
        """The query."""
        return example.texts[0]

    def texts_in(self, given: Any, number: int) -> tuple[str, ...]:
        """A query and a passage."""
        return pair_of(given, number, "a query and a passage")

    def decode(self, model: Inference, given: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[float]:
        """The probability that each passage answers its query."""
        return (1 / (1 + np.exp(-outputs[:, 0].astype(np.float64)))).tolist()


RELEVANCE = RelevanceKind()
