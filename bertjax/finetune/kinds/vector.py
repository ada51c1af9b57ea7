"""Vectors: texts of one pair get similar vectors, other texts of the batch do not (contrastive learning)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import Columns
from bertjax.finetune.encoding.rows import Segments, TaskRows
from bertjax.finetune.kinds.kind import Card, Figures, Inference, Judged, Split, Task, TaskContent, refuse_options
from bertjax.finetune.kinds.texts import TextKind
from bertjax.finetune.metrics.classification import accuracy
from bertjax.model.task_heads import VectorNetwork
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.text.ragged import range_indices
from bertjax.training.objectives import Batch, Forward, Keys, Sums, classified

_NONE = jnp.finfo(jnp.float32).min  # the logit of a text that is not a candidate
_ROWS_AT_ONCE = 256  # multiplied with all second texts together
_EMBED = """\
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
inputs = tokenizer(["a text", "another one"], padding=True, return_tensors="pt")
hidden = AutoModel.from_pretrained("path/to/this/folder")(**inputs).last_hidden_state
real = inputs["attention_mask"][..., None]
vectors = (hidden * real).sum(1) / real.sum(1)"""


def cut(vectors: jax.Array, dim: int) -> jax.Array:
    """Cut vectors [..., D] to their first `dim` numbers and scale them to length 1; 0 returns them unchanged."""
    if not dim:
        return vectors
    first = vectors[..., :dim]
    return first * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(first), axis=-1, keepdims=True), 1e-24))


def cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute the cosines of pairs of vectors of length 1, [n, D] each: float64 [n]."""
    return np.einsum("nd,nd->n", first.astype(np.float64), second.astype(np.float64))


def nearest_seconds(vectors: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest second text of each first one among all pairs [n, 2, D]: (numbers int64 [n], cosines [n]).

    As in training, second texts of other pairs that share a text are left out; `texts` int32 [n, 2] numbers the texts.
    """
    seconds, nearest = np.ascontiguousarray(vectors[:, 1]), np.zeros(len(vectors), np.int64)
    cosines = np.zeros(len(vectors))
    order = np.argsort(texts, axis=None)
    sorted_texts = texts.reshape(-1)[order]
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        own = texts[start : start + _ROWS_AT_ONCE]
        scores = vectors[start : start + len(own), 0] @ seconds.T
        row = np.arange(len(own))
        right = scores[row, start + row]
        first, last = (np.searchsorted(sorted_texts, own.reshape(-1), side=side) for side in ("left", "right"))
        shared = order[range_indices(first, last - first)] // 2
        scores[np.repeat(row, 2).repeat(last - first), shared] = -np.inf
        scores[row, start + row] = right
        nearest[start : start + len(own)] = scores.argmax(1)
        cosines[start : start + len(own)] = scores.max(1)
    return nearest, cosines


def nearest_accuracy(vectors: np.ndarray, texts: np.ndarray) -> float:
    """Compute the share of first texts whose nearest second text is their own."""
    nearest, _ = nearest_seconds(vectors, texts)
    return accuracy(nearest, np.arange(len(nearest)))


class VectorKind(TextKind):
    """Examples are pairs without labels, and hard negatives of the first text. A row has a sequence for each text."""

    name, network, own_task = "vector", VectorNetwork, "pairs"
    options = ("dims", "temperature")
    metrics = ("accuracy",)  # share of first texts whose nearest second text is their own
    packed = False  # a row has two sequences already
    global_tokens = None
    labelled = has_baseline = False
    no_prediction = "the model gives vectors; use encode"
    text_columns, default_columns = (2, None), ("text", "text_b")
    columns_wanted = "two columns of text, and any number of hard negatives"
    card = Card(
        "sentence-similarity",
        "maps texts to vectors, the means over their tokens, so that similar meanings have similar vectors",
        _EMBED,
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """InfoNCE: each first text must find its second among the seconds and negatives of the global batch.

        Logits are cosines divided by `task.temperature`. Rows of weight 0 are not candidates. With `task.dims` the
        figures are means over whole vectors and vectors cut to each dim (Matryoshka, Kusupati et al. 2022).
        """
        vectors, weights = self.outputs(forward.model, forward(batch), batch), batch["label_weights"]
        # `all_gather` keeps the order of rows, which is the order of the mesh's axes.
        local = (vectors[:, 1:], batch["texts"], weights)
        others, texts, all_weights = jax.lax.all_gather(local, BATCH_AXES, tiled=True)
        row = jax.lax.axis_index(BATCH_AXES) * len(weights) + jnp.arange(len(weights))
        C = others.shape[1]  # candidates in a row: the second, then its negatives
        pairs = batch["texts"][:, None, :2, None]
        # Other answers to the same query are not wrong, nor are copies of the answer with another query.
        shared = (pairs == texts[:, None, :2]).any((2, 3))
        wrong = [~shared | (row[:, None] == jnp.arange(len(texts)))]
        wrong += [(batch["texts"][:, None, :2] != texts[:, negative, None]).all(2) for negative in range(2, 1 + C)]
        candidates = ((all_weights > 0)[:, None] & jnp.stack(wrong, 2)).reshape(len(weights), -1)
        results = [
            classified(
                jnp.where(candidates, first @ seconds.reshape(-1, seconds.shape[-1]).T / task.temperature, _NONE),
                row * C,
                weights,
            )
            for first, seconds in ((cut(vectors[:, 0], dim), cut(others, dim)) for dim in (0, *task.dims))
        ]
        return {
            name: sum((one[name] for one in results[1:]), value) / len(results) for name, value in results[0].items()
        }

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Compute the vectors, of length 1, of the texts in each row: [B, texts, D]."""
        return model.vectors(hidden, batch["sequence_ids"], batch["cls_positions"].shape[1])

    def count_texts(self, examples: Sequence[TextExample], labels: Sequence[str]) -> int:
        return max(2, len(examples[0].texts))

    def own(self, config: TaskConfig) -> Task:
        refuse_options(config, ("id",), "writes no predictions, which need ids")
        return replace(super().own(config), metrics=self.metrics_by_dim(self.metrics[0], config.dims))

    def columns(self, texts: Sequence[str], label: str, id_column: str) -> Columns:
        """Describe two columns of texts and the columns of negatives: one per negative, or one with lists."""
        return Columns(text=texts[0], text_b=texts[1], label=label, id=id_column, ends=tuple(texts[2:]))

    @staticmethod
    def metrics_by_dim(metric: str, dims: Sequence[int]) -> tuple[str, ...]:
        """List the metric of whole vectors, and `METRIC_DIM` for vectors cut to each of `dims`."""
        return (metric, *(f"{metric}_{dim}" for dim in dims))

    @staticmethod
    def by_dim(metrics: Sequence[str], vectors: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each metric of `metrics_by_dim` with the vectors [n, S, D] that it measures."""
        for metric in metrics:
            dim = int(metric.partition("_")[2] or 0)
            yield metric, np.asarray(cut(jnp.asarray(vectors), dim))

    def segments(self, texts: int) -> Segments:
        return Segments.sequence_each(texts)

    def targets(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        return np.zeros(len(examples), np.int32)  # no example lacks a label

    def target_arrays(self, targets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"label_weights": weights}

    def more_arrays(self, examples: Sequence[TextExample]) -> dict[str, np.ndarray]:
        """Number the texts: `texts`, int32 [n, texts per example]. Equal texts have equal numbers, in any column."""
        numbers: dict[str, int] = {}
        texts = [[numbers.setdefault(text, len(numbers)) for text in one.texts] for one in examples]
        return {"texts": np.array(texts, np.int32)}

    def answers(self, examples: Sequence[TextExample], labels: Sequence[str], rows: TaskRows) -> np.ndarray:
        return rows.rows["texts"]

    def measure(self, metrics: Sequence[str], answers: np.ndarray, outputs: np.ndarray) -> Figures:
        return {
            metric: nearest_accuracy(vectors[:, :2], answers[:, :2])
            for metric, vectors in self.by_dim(metrics, outputs)
        }

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """Count a pair as right if its second text is the nearest to its first; certainty is the cosine."""
        nearest, similarities = nearest_seconds(outputs[:, :2], answers[:, :2])
        return [
            Judged(one.texts[:1], one.texts[1], examples[number].texts[1], number == own, cosine)
            for own, (one, number, cosine) in enumerate(
                zip(examples, nearest.tolist(), similarities.tolist(), strict=True)
            )
        ]

    def notes(self, dev: dict[str, Split]) -> Sequence[str]:
        notices = []
        for name, split in dev.items():
            texts = split.rows.rows["texts"][:, :2]
            if any((texts == text).any(1).all() for text in texts[0]):
                notices.append(
                    f"{name}: one text is in all pairs, so that no answer is wrong, and any model's accuracy is 1"
                )
        return notices

    def shared_part(self, example: TextExample) -> Any:
        return example.texts[0]  # a query occurs with several passages

    def check_run(self, config: FinetuneConfig, content: TaskContent) -> None:
        """Refuse microbatches, which would have fewer negatives each, and dims out of range."""
        if config.training.microbatches > 1:
            raise ValueError(
                f"training.grad_accum_steps={config.training.grad_accum_steps}: the loss compares all pairs of a "
                "batch, which microbatches would split; use 1 and a smaller training.global_batch_size"
            )
        if not all(0 < dim < config.model.hidden_size for dim in config.task.dims):
            raise ValueError(
                f"task.dims={config.task.dims} (--dims): give numbers from 1 to {config.model.hidden_size - 1}, below "
                "the width of the model, whose whole vectors are always trained"
            )

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        raise NotImplementedError(self.no_prediction)

    def write(
        self, task: Task, name: str, labels: Sequence[str], ids: Sequence[str], folder: Path, outputs: np.ndarray
    ) -> list[Path]:
        return []  # a vector is not a prediction


VECTOR = VectorKind()
