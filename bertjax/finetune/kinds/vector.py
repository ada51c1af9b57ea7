"""Vectors: texts of one pair get similar vectors, other texts of the batch do not (contrastive learning)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.encoding.rows import Segments, TaskRows
from bertjax.finetune.kinds.kind import Card, Figures, Inference, Judged, Split, Task, TaskContent
from bertjax.finetune.kinds.texts import TextKind
from bertjax.finetune.metrics.classification import accuracy
from bertjax.model.task_heads import VectorNetwork
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.text.ragged import range_indices
from bertjax.training.objectives import Batch, Forward, Keys, Sums, classified

_ROWS_AT_ONCE = 256  # whose products with all second texts are held together
_EMBED = """\
from transformers import AutoModel, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
inputs = tokenizer(["a text", "another one"], padding=True, return_tensors="pt")
hidden = AutoModel.from_pretrained("path/to/this/folder")(**inputs).last_hidden_state
real = inputs["attention_mask"][..., None]
vectors = (hidden * real).sum(1) / real.sum(1)"""


def nearest_seconds(vectors: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest second text of each first one among all pairs [n, 2, D]: (its number int64 [n], its cosine [n]).

    As in training, second texts of pairs that share a text are left out; `texts` int32 [n, 2] numbers the texts.
    """
    seconds, nearest = np.ascontiguousarray(vectors[:, 1]), np.zeros(len(vectors), np.int64)
    cosines = np.zeros(len(vectors))
    order = np.argsort(texts, axis=None)
    known = texts.reshape(-1)[order]
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        own = texts[start : start + _ROWS_AT_ONCE]
        scores = vectors[start : start + len(own), 0] @ seconds.T
        row = np.arange(len(own))
        right = scores[row, start + row]
        first, last = (np.searchsorted(known, own.reshape(-1), side=side) for side in ("left", "right"))
        shared = order[range_indices(first, last - first)] // 2
        scores[np.repeat(row, 2).repeat(last - first), shared] = -np.inf
        scores[row, start + row] = right
        nearest[start : start + len(own)] = scores.argmax(1)
        cosines[start : start + len(own)] = scores.max(1)
    return nearest, cosines


def nearest_accuracy(vectors: np.ndarray, texts: np.ndarray) -> dict[str, float]:
    """The share of first texts whose `nearest_seconds` is their own."""
    nearest, _ = nearest_seconds(vectors, texts)
    return {"accuracy": accuracy(nearest, np.arange(len(nearest)))}


class VectorKind(TextKind):
    """Examples are pairs without labels. A row holds both texts, in a sequence each; `texts` are their numbers."""

    name, network, own_task = "vector", VectorNetwork, "pairs"
    metrics = ("accuracy",)  # how often the nearest second of a first text is its own
    packed = False  # a row has two sequences already
    global_tokens = None
    labelled = has_baseline = False
    no_prediction = "it gives vectors: use encode"
    text_columns, default_columns, columns_wanted = (2, 2), ("text", "text_b"), "two texts"
    card = Card(
        "sentence-similarity",
        "gives a text a vector, the mean of its tokens', near to those of texts of like meaning",
        _EMBED,
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """InfoNCE: each first text has to find its second among the seconds of the global batch.

        Logits are cosines over `task.temperature`. Rows of weight 0, and rows that share a text with the pair, are not
        candidates.
        """
        vectors, weights = self.outputs(forward.model, forward(batch), batch), batch["label_weights"]
        # In the order of the mesh's axes, which is that of the rows.
        everyone = (vectors[:, 1], batch["texts"], weights)
        seconds, texts, there = jax.lax.all_gather(everyone, BATCH_AXES, tiled=True)
        own = jax.lax.axis_index(BATCH_AXES) * len(weights) + jnp.arange(len(weights))
        # Another answer to the same query is not wrong, nor is a copy of the answer with another query.
        shared = (batch["texts"][:, None, :, None] == texts[:, None]).any((2, 3))
        candidates = (there > 0) & (~shared | (own[:, None] == jnp.arange(len(texts))))
        logits = jnp.where(candidates, vectors[:, 0] @ seconds.T / task.temperature, jnp.finfo(jnp.float32).min)
        return classified(logits, own, weights)

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """The vectors, of length 1, of the two texts in each row: [B, 2, D]."""
        return model.vectors(hidden, batch["sequence_ids"], batch["cls_positions"].shape[1])

    def count_texts(self, examples: Sequence[TextExample], labels: Sequence[str]) -> int:
        return 2

    def segments(self, texts: int) -> Segments:
        return Segments.sequence_each(texts)

    def targets(self, examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
        return np.zeros(len(examples), np.int32)  # no example lacks a label

    def target_arrays(self, targets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"label_weights": weights}

    def more_arrays(self, examples: Sequence[TextExample]) -> dict[str, np.ndarray]:
        """`texts`, int32 [n, 2]: equal texts have equal numbers, in either column."""
        known: dict[str, int] = {}
        numbers = [[known.setdefault(text, len(known)) for text in one.texts] for one in examples]
        return {"texts": np.array(numbers, np.int32)}

    def answers(self, examples: Sequence[TextExample], labels: Sequence[str], rows: TaskRows) -> np.ndarray:
        return rows.rows["texts"]

    def measure(self, metrics: Sequence[str], answers: np.ndarray, outputs: np.ndarray) -> Figures:
        return nearest_accuracy(outputs, answers)

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """A pair is right if its second text is the nearest one to its first; the certainty is the cosine."""
        nearest, cosines = nearest_seconds(outputs, answers)
        return [
            Judged(one.texts[:1], one.texts[1], examples[number].texts[1], number == own, cosine)
            for own, (one, number, cosine) in enumerate(zip(examples, nearest.tolist(), cosines.tolist(), strict=True))
        ]

    def notes(self, dev: dict[str, Split]) -> Sequence[str]:
        notices = []
        for name, split in dev.items():
            texts = split.rows.rows["texts"]
            if any((texts == text).any(1).all() for text in texts[0]):
                notices.append(
                    f"{name}: one text is in all pairs, so that none has a wrong second, and any model's accuracy is 1"
                )
        return notices

    def shared_part(self, example: TextExample) -> Any:
        return example.texts[0]  # a query comes again with other passages

    def check_run(self, config: FinetuneConfig, content: TaskContent) -> None:
        """Refuse microbatches: wrong seconds are those of one microbatch, so that splitting makes the task easier."""
        if config.training.microbatches > 1:
            raise ValueError(
                f"training.grad_accum_steps={config.training.grad_accum_steps}: the loss compares all pairs of a "
                "batch, which microbatches would split; use 1 and a smaller training.global_batch_size"
            )

    def decode(self, model: Inference, given: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Any]:
        raise NotImplementedError(self.no_prediction)

    def write(
        self, task: Task, name: str, labels: Sequence[str], ids: Sequence[str], folder: Path, outputs: np.ndarray
    ) -> list[Path]:
        return []  # a vector is not a prediction


VECTOR = VectorKind()
