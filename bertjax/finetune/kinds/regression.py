"""Regression: predict a number for a text or pair (transformers' BertForSequenceClassification with one output)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.kinds.kind import Card, Inference, Judged
from bertjax.finetune.kinds.sequence import CLASSIFY
from bertjax.finetune.kinds.texts import TextKind
from bertjax.finetune.metrics.classification import require_finite
from bertjax.model.task_heads import SequenceNetwork
from bertjax.training.objectives import Batch, Forward, Keys, Sums
from bertjax.training.objectives.objective import MODEL

_LOWEST, _HIGHEST = 0.0, 5.0  # scores of STS-B


class NumericKind(TextKind):
    """A kind whose labels are numbers and whose network has one output."""

    network = SequenceNetwork
    numeric = learns_predictions = True

    def num_labels(self, labels: int) -> int:
        return 1

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """[B, S]."""
        logits = forward.network(network).sequence_logits(forward(batch, network), batch["cls_positions"], keys)
        return logits[:, :, 0]

    def soft_loss(self, ours: jax.Array, theirs: jax.Array) -> jax.Array:
        return jnp.square(ours - theirs)

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """[B, 1]."""
        return model.sequence_logits(hidden, batch["cls_positions"])[:, 0]

    def lines(self, prediction: float) -> list[str]:
        return [f"{prediction:.4f}"]


class RegressionKind(NumericKind):
    """Squared error as loss, correlations with the labels as metrics."""

    name, own_task = "regression", "regression"
    metrics = ("spearman", "pearson")
    problem_type = "regression"
    figures: ClassVar[tuple[str, ...]] = ("loss",)
    has_baseline, judges_by_distance = False, True
    judged = ("Further from the label than the mean label, furthest first", "Nearer, nearest first")
    card = Card(
        "text-classification",
        "gives a text or a pair a number",
        CLASSIFY,
        onnx_outputs="`logits` has a row per text, or per pair of texts: the number that it was trained to give",
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        error = self.logits(forward, batch, keys) - batch["labels"]
        return {"loss": jnp.sum(jnp.square(error) * batch["label_weights"])}

    def predictions(self, logits: np.ndarray) -> np.ndarray:
        return require_finite(logits)[:, 0].astype(np.float32)

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """Count a number as right if it is nearer to the label than the mean label is."""
        predicted = self.predictions(outputs)
        far = np.abs(predicted - answers)
        right = far < np.abs(answers - answers.mean())
        certainty = np.where(right, -far, far)
        columns = (answers, predicted, right, certainty)
        return [
            Judged(example.texts, f"{answer:.4g}", f"{prediction:.4g}", is_right, value)
            for example, answer, prediction, is_right, value in zip(
                examples, *(column.tolist() for column in columns), strict=True
            )
        ]

    def submitted(self, logits: np.ndarray, labels: Sequence[str]) -> list[str]:
        return [f"{score:.3f}" for score in np.clip(self.predictions(logits), _LOWEST, _HIGHEST)]

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[float]:
        return outputs[:, 0].tolist()


REGRESSION = RegressionKind()
