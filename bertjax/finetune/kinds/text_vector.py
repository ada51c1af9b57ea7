"""Vectors from plain text: pairs of similar meaning are made from the text itself, without labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import read_split_of_table
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import Figures, Judged, Recipe, Splits, Task, TaskContent, refuse_options
from bertjax.finetune.kinds.vector import VectorKind, cosines
from bertjax.finetune.metrics.classification import spearman
from bertjax.finetune.positives import get_positives, read_pairs, split_words
from bertjax.tokenization.tokenizer import Tokenizer

_SCORED, _NEAREST = "spearman", "accuracy"  # metrics of pairs with numbers, and of other pairs
_NEAR_RANK = 0.1  # largest difference of ranks that counts as right, as a share of the pairs


class TextVectorKind(VectorKind):
    """Makes pairs from `task.from_text` by the rules `task.positives`.

    Development and test files have pairs with a number for their similarity; the metric is its rank correlation with
    the cosines. For a test file without numbers, the metric is the accuracy of finding the second text of a pair.
    Without a development file texts are held out, and the second half of each is searched for with its first half.
    """

    name, own_task = "text_vector", "vectors"
    most_held_out = 1_000
    options = ("from_text", "positives", "dims", "temperature")

    def own(self, config: TaskConfig) -> Task:
        """Make the task. Raises ValueError without text, and for options of tables with training examples."""
        if not config.from_text:
            raise ValueError(
                f"{config.name}: no text; name it as in --from-text 'text:books/*.txt', or fine-tune pairs for a table"
            )
        refuse_options(config, ("data", "train", "labels"), "makes its training set from --from-text")
        refuse_options(config, ("id",), "writes no predictions, which need ids")
        if not (config.dev or config.test):
            refuse_options(config, ("text", "label"), "has columns only in --dev and --test, and neither is given")
        get_positives(config.positives)
        scored = bool(config.dev)
        texts = config.text or self.default_columns
        if len(texts) != len(self.default_columns):
            raise ValueError(f"task.text={config.text}: give the two columns of the texts in --dev")
        columns = self.columns(texts, config.label or "label", config.id)
        metrics = self.metrics_by_dim(_SCORED if scored else _NEAREST, config.dims)
        return Task(
            "own",
            self,
            metrics,
            Recipe(3e-5, 64, 1, 64),
            partial(read_split_of_table, columns, regression=True),
            read_train=partial(read_pairs, config.from_text, config.positives),
        )

    def completed(self, config: FinetuneConfig) -> FinetuneConfig:
        positives = config.task.positives or self.default_positives(config.model)
        return replace(config, task=replace(config.task, positives=positives))

    def default_positives(self, model: ModelConfig) -> tuple[str, ...]:
        """Choose the rules if none are named."""
        return ("dropout",) if _dropout(model) else ("deletion",)

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        scored = bool(config.task.dev)
        dev = {name: examples if scored else [*map(_split_in_half, examples)] for name, examples in splits.dev.items()}
        return super().load(task, config, tokenizer, Splits(splits.train, dev, splits.test, splits.notes))

    def answers(self, examples: Sequence[TextExample], labels: Sequence[str], rows: TaskRows) -> np.ndarray:
        """Return the scores of pairs, float64 [n], or without scores the numbers of their texts, int32 [n, 2]."""
        if examples[0].label is None:
            return super().answers(examples, labels, rows)
        return np.array([example.label for example in examples], np.float64)

    def measure(self, metrics: Sequence[str], answers: np.ndarray, outputs: np.ndarray) -> Figures:
        """Compute the figures that a set's answers allow: a test set may have scores even if the others have none."""
        if answers.ndim == 2:
            return super().measure(_rename_metrics(metrics, _NEAREST), answers, outputs)
        return {
            metric: spearman(cosines(vectors[:, 0], vectors[:, 1]), answers)
            for metric, vectors in self.by_dim(_rename_metrics(metrics, _SCORED), outputs)
        }

    def check_examples(self, examples: Sequence[TextExample], labels: Sequence[str]) -> None:
        bare = [example for example in examples if example.label is None]
        if 0 < len(bare) < len(examples):
            raise ValueError(
                f"{bare[0].where}: the pair has no number for its similarity, but other rows have one; give one to "
                "every row, or to none"
            )

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """Count a scored pair as right if its cosine ranks within a tenth of its score's; certainty is the cosine."""
        from scipy.stats import rankdata  # imported late: a fifth of the import time of other runs

        if answers.ndim == 2:
            return super().judge(examples, labels, answers, outputs)
        similarities = cosines(outputs[:, 0], outputs[:, 1])
        distance = np.abs(rankdata(similarities) - rankdata(answers)) / len(answers)
        rows = zip(examples, answers.tolist(), similarities.tolist(), distance.tolist(), strict=True)
        return [
            Judged(one.texts, f"{answer:g}", f"cosine {cosine:.3f}", far <= _NEAR_RANK, cosine)
            for one, answer, cosine, far in rows
        ]

    def check_run(self, config: FinetuneConfig, content: TaskContent) -> None:
        super().check_run(config, content)
        rules = get_positives(config.task.positives)
        if not _dropout(config.model) and (rule := next((rule for rule in rules if rule.needs_dropout), None)):
            raise ValueError(
                f"task.positives={rule.name!r} with model.hidden_dropout_prob=0: both vectors of a text would be "
                "equal; name --positives deletion or, for a model that was pretrained with dropout, add "
                "--model.hidden-dropout-prob 0.1 --model.attention-probs-dropout-prob 0.1"
            )


def _dropout(model: ModelConfig) -> float:
    """Sum the dropout rates of the encoder."""
    return model.hidden_dropout_prob + model.attention_probs_dropout_prob


def _rename_metrics(metrics: Sequence[str], name: str) -> list[str]:
    """Rename the result of `metrics_by_dim` for another metric."""
    return ["".join((name, *metric.partition("_")[1:])) for metric in metrics]


def _split_in_half(example: TextExample) -> TextExample:
    """Split the longer text into halves: a pair that no rule makes for training."""
    words, space = split_words(max(example.texts, key=len))
    at = len(words) // 2
    return TextExample(example.where, example.id, (space.join(words[:at]), space.join(words[at:])), None)


TEXT_VECTOR = TextVectorKind()
