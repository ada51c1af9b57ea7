"""The data of tasks whose examples are texts: classification, numbers, relevance, choices, pairs of like meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.finetune.chosen import Examples, drawn
from bertjax.finetune.content import Figures, Split, TaskContent
from bertjax.finetune.encoding import encode_texts
from bertjax.finetune.examples import TextExample
from bertjax.finetune.label_weights import label_weights
from bertjax.finetune.labels import label_numbers
from bertjax.finetune.lengths import RowCounts
from bertjax.finetune.rows import TaskRows
from bertjax.finetune.scores import figures_of, found_seconds, predictions_of
from bertjax.finetune.submissions import write_predictions, write_submission
from bertjax.finetune.tasks import Task, labels_of
from bertjax.tokenization.tokenizer import Tokenizer


class TextTask:
    """How the examples of one task become rows, and outputs figures and files."""

    def __init__(self, task: Task, config: FinetuneConfig, labels: tuple[str, ...], tokenizer: Tokenizer) -> None:
        self._task, self._config, self._labels, self._tokenizer = task, config, labels, tokenizer
        self.counts = RowCounts()

    def rows(self, examples: Sequence[TextExample], label_weights: Sequence[float] | None = None) -> TaskRows:
        """Encoded; `counts` tells of the long ones."""
        return encode_texts(
            examples,
            self._task.kind,
            self._labels,
            self._tokenizer,
            self._config.data.sequence_length,
            self.counts,
            strict=self._config.task.strict_length,
            label_weights=label_weights,
        )

    def split(self, name: str, examples: Sequence[TextExample]) -> Split:
        """A set that is predicted, and measured if it has labels."""
        labelled = self._task.kind == "vector" or all(example.label is not None for example in examples)
        rows = self.rows(examples)
        targets = rows.rows["texts"] if self._task.kind == "vector" else self._targets(examples)
        figures = partial(self._figures, targets) if labelled else None
        return Split(rows, partial(self._write, name, [example.id for example in examples]), figures)

    def baselines(self, examples: Sequence[TextExample]) -> Figures:
        """What the most frequent label alone would reach."""
        if self._task.kind not in ("sequence", "choice", "relevance"):
            return {}
        counts = Counter(example.label for example in examples)
        return {"baseline/majority_accuracy": max(counts.values()) / len(examples)}

    def _targets(self, examples: Sequence[TextExample]) -> np.ndarray:
        if self._task.kind in ("regression", "relevance"):
            return np.array([example.label for example in examples], np.float32)
        return label_numbers(examples, self._labels)

    def _figures(self, targets: np.ndarray, outputs: np.ndarray) -> Figures:
        if self._task.kind == "vector":
            return found_seconds(outputs, targets)
        return figures_of(self._task.metrics, predictions_of(self._task.kind, outputs), targets)

    def _write(self, name: str, ids: Sequence[str], folder: Path, outputs: np.ndarray) -> list[Path]:
        if self._task.kind == "vector":
            return []
        files = [write_predictions(folder / f"{name}.tsv", self._task.kind, self._labels, ids, outputs)]
        if name in self._task.submissions:
            files.append(write_submission(folder, self._task, name, ids, outputs))
        return files


def open_texts(task: Task, config: FinetuneConfig, tokenizer: Tokenizer, sets: Examples) -> TaskContent:
    """The content of a task of texts. Raises ValueError naming file and line of whatever is wrong in them."""
    train = drawn(sets.train, config)
    labels = labels_of(task, sets.train)
    made = TextTask(task, config, labels, tokenizer)
    rows = made.rows(train, label_weights(config.task, labels, lambda: label_numbers(train, labels)))
    dev = {name: made.split(name, examples) for name, examples in sets.dev.items()}
    test = {name: made.split(name, examples) for name, examples in sets.test.items()}
    return TaskContent(
        task.kind,
        task.meanings or labels,
        rows,
        dev,
        test,
        task.metrics,
        (*sets.notes, *made.counts.told(config.data.sequence_length), *_measures_nothing(dev)),
        made.baselines(next(iter(sets.dev.values()))),
    )


def _measures_nothing(dev: Mapping[str, Split]) -> Iterator[str]:
    """What is to be said of development sets of pairs in which there is no wrong second to find."""
    for name, split in dev.items():
        texts = split.rows.rows.get("texts")
        if texts is not None and any((texts == text).any(1).all() for text in texts[0]):
            yield f"{name}: one text is in all pairs, so that none has a wrong second, and any model's accuracy is 1"
