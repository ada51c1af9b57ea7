"""Vectors from plain text: pairs of like meaning are made of the text itself, so that nobody has to label any."""

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
_NEAR_RANK = 0.1  # of the pairs


class TextVectorKind(VectorKind):
    """`task.positives` makes the pairs of `task.from_text`.

    A development or test file has pairs with a number for their likeness, whose rank correlation with the cosines is
    measured; in a test file without numbers, the nearest pairs. Without a development file texts are held out, and the
    second half of each is searched for with its first half.
    """

    name, own_task = "text_vector", "vectors"
    most_held_out = 1_000
    options = ("from_text", "positives", "dims", "temperature")

    def own(self, config: TaskConfig) -> Task:
        """Make the task. Raises ValueError without text, and for the options of tables with training examples."""
        if not config.from_text:
            raise ValueError(
                f"{config.name}: no text; name it as in --from-text 'text:books/*.txt', or fine-tune pairs for a table"
            )
        refuse_options(config, ("data", "train", "labels"), "makes its training set of --from-text")
        refuse_options(config, ("id",), "writes no predictions, whose ids they would be")
        if not (config.dev or config.test):
            refuse_options(config, ("text", "label"), "has columns in --dev and --test alone, and neither is given")
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
        """The rules for pairs where none is named."""
        return ("dropout",) if _dropout(model) else ("deletion",)

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        scored = bool(config.task.dev)
        dev = {name: examples if scored else [*map(_halves, examples)] for name, examples in splits.dev.items()}
        return super().load(task, config, tokenizer, Splits(splits.train, dev, splits.test, splits.notes))

    def answers(self, examples: Sequence[TextExample], labels: Sequence[str], rows: TaskRows) -> np.ndarray:
        """The numbers of scored pairs, float64 [n]; of other pairs the numbers of their texts, int32 [n, 2]."""
        if examples[0].label is None:
            return super().answers(examples, labels, rows)
        return np.array([example.label for example in examples], np.float64)

    def measure(self, metrics: Sequence[str], answers: np.ndarray, outputs: np.ndarray) -> Figures:
        """The figures of a set are named by its own answers, since a test set may be scored where no other is."""
        if answers.ndim == 2:
            return super().measure(_renamed(metrics, _NEAREST), answers, outputs)
        return {
            metric: spearman(cosines(vectors[:, 0], vectors[:, 1]), answers)
            for metric, vectors in self.by_dim(_renamed(metrics, _SCORED), outputs)
        }

    def check_examples(self, examples: Sequence[TextExample], labels: Sequence[str]) -> None:
        bare = [example for example in examples if example.label is None]
        if 0 < len(bare) < len(examples):
            raise ValueError(
                f"{bare[0].where}: no number for the likeness of the pair, which other rows have; give one to every "
                "row, or to none"
            )

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """A scored pair is right if its cosine ranks within a tenth of its number's rank; certainty is the cosine."""
        from scipy.stats import rankdata  # a fifth of the import time of a run that does not need it

        if answers.ndim == 2:
            return super().judge(examples, labels, answers, outputs)
        likeness = cosines(outputs[:, 0], outputs[:, 1])
        distance = np.abs(rankdata(likeness) - rankdata(answers)) / len(answers)
        rows = zip(examples, answers.tolist(), likeness.tolist(), distance.tolist(), strict=True)
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
    """The sum of the rates in the encoder."""
    return model.hidden_dropout_prob + model.attention_probs_dropout_prob


def _renamed(metrics: Sequence[str], name: str) -> list[str]:
    """The names of `metrics_by_dim` for another metric."""
    return ["".join((name, *metric.partition("_")[1:])) for metric in metrics]


def _halves(example: TextExample) -> TextExample:
    """The halves of the longer text: a pair that no rule of training had."""
    words, space = split_words(max(example.texts, key=len))
    at = len(words) // 2
    return TextExample(example.where, example.id, (space.join(words[:at]), space.join(words[at:])), None)


TEXT_VECTOR = TextVectorKind()
