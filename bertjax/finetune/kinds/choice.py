"""Multiple choice: choose the right one of several ends of a start (transformers' BertForMultipleChoice)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import Columns
from bertjax.finetune.encoding.global_tokens import SECOND_SEGMENT
from bertjax.finetune.encoding.rows import Segments
from bertjax.finetune.kinds.kind import Card, Inference, Judged, Task, shorten
from bertjax.finetune.kinds.texts import TextKind, wrong_number
from bertjax.model.task_heads import ChoiceNetwork
from bertjax.training.objectives import Batch, Forward, Keys
from bertjax.training.objectives.objective import MODEL

_CHOOSE = """\
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForMultipleChoice.from_pretrained("path/to/this/folder")
start, ends = "She opened the door", ["and went in.", "of the."]
inputs = tokenizer([start] * len(ends), ends, padding=True, return_tensors="pt")
model(**{name: rows[None] for name, rows in inputs.items()}).logits.argmax()"""


class Choice(NamedTuple):
    """The likeliest of several ends of one start: its index from 0, and the probability of every end."""

    number: int
    end: str
    probability: float
    probabilities: tuple[float, ...]


class ChoiceKind(TextKind):
    """Examples are a start and C ends; the label is the index of the right end, from "0". A row holds all choices."""

    name, network, own_task = "choice", ChoiceNetwork, "choice"
    learns_predictions = True
    metrics = ("accuracy",)
    packed = False  # a row has several sequences already
    global_tokens = SECOND_SEGMENT
    text_columns, default_columns = (2, None), ("text", "text_b")
    columns_wanted = "a column of starts, and columns of ends or one column with lists of ends"
    pair = "a start and an end"
    card = Card(
        "multiple-choice",
        "chooses one of several continuations",
        _CHOOSE,
        '("the start", "an end"), ("the start", "another end")',
        "`logits` has a row per pair: of the ends of one start, the one with the highest value is chosen",
    )

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """[B, choices]."""
        return forward.network(network).choice_logits(forward(batch, network), batch["cls_positions"], keys)

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        return model.choice_logits(hidden, batch["cls_positions"])

    def own(self, config: TaskConfig) -> Task:
        if config.labels != _indices(len(config.labels)):
            raise ValueError(f"task.labels={config.labels}: ends are labelled with their numbers, from 0; leave it out")
        return super().own(config)

    def labels_in(self, train: Sequence[TextExample]) -> tuple[str, ...]:
        return _indices(len(train[0].texts) - 1)

    def count_texts(self, examples: Sequence[TextExample], labels: Sequence[str]) -> int:
        return 1 + len(labels)

    def check_texts(self, examples: Sequence[TextExample], texts: int) -> None:
        for example in examples:
            if len(example.texts) != texts:
                raise wrong_number(example, len(example.texts) - 1, "choices", texts - 1)

    def segments(self, texts: int) -> Segments:
        return Segments.first_with_each(texts)

    def target_arrays(self, targets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
        return {"labels": targets, "label_weights": weights}  # [n]: a row has one label for all its sequences

    def columns(self, texts: Sequence[str], label: str, id_column: str) -> Columns:
        return Columns(text=texts[0], label=label, id=id_column, ends=tuple(texts[1:]))

    def make_input(self, texts: Sequence[str]) -> Any:
        return texts[0], list(texts[1:])

    def input_labels(self, model: Inference, input_texts: Sequence[tuple[str, ...]]) -> Sequence[str]:
        return _indices(len(input_texts[0]) - 1)

    def texts_in(self, value: Any, number: int) -> tuple[str, ...]:
        if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[0], str):
            start, ends = value
            if isinstance(ends, tuple | list) and len(ends) > 1 and all(isinstance(end, str) for end in ends):
                return (start, *ends)
        raise ValueError(f"input {number}: {shorten(value)} is not a start and a list of two or more ends")

    def decode(self, model: Inference, input_texts: Sequence[tuple[str, ...]], outputs: np.ndarray) -> list[Choice]:
        choices = []
        for (_, *ends), shares in zip(input_texts, softmax(outputs.astype(np.float64), -1), strict=True):
            best = int(shares.argmax())
            choices.append(Choice(best, ends[best], float(shares[best]), tuple(shares.tolist())))
        return choices

    def judge(
        self, examples: Sequence[TextExample], labels: Sequence[str], answers: np.ndarray, outputs: np.ndarray
    ) -> list[Judged]:
        """Like the base class, with the ends themselves as answers."""
        judged = super().judge(examples, labels, answers, outputs)
        return [
            one._replace(texts=texts[:1], answer=texts[1 + int(one.answer)], prediction=texts[1 + int(one.prediction)])
            for one, texts in zip(judged, (example.texts for example in examples), strict=True)
        ]

    def lines(self, prediction: Choice) -> list[str]:
        return [f"{prediction.probability:6.1%}  {prediction.end}"]


CHOICE = ChoiceKind()


def _indices(count: int) -> tuple[str, ...]:
    return tuple(str(index) for index in range(count))
