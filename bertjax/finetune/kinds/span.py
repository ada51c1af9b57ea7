"""Question answering: find the span of a text that answers a question (transformers' BertForQuestionAnswering)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.families.registry import get_family
from bertjax.finetune.data.examples import Question, label_weights
from bertjax.finetune.encoding.answers import (
    NO_SHARES,
    PREDICTIONS,
    QuestionAnswers,
    answer_figures,
    find_answers,
    write_answers,
)
from bertjax.finetune.encoding.global_tokens import FIRST_SEGMENT
from bertjax.finetune.encoding.question_windows import QuestionCounts, QuestionWindows, WindowSizes, question_windows
from bertjax.finetune.kinds.kind import (
    Card,
    Figures,
    Inference,
    Judged,
    Kind,
    Measure,
    Split,
    Splits,
    Task,
    TaskContent,
    mismatch_error,
    read_run_file,
    require_pair,
)
from bertjax.finetune.metrics.squad import exact_match, squad2_figures, squad_figures
from bertjax.model.task_heads import SpanNetwork
from bertjax.storage.remote import AnyPath
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Batch, Forward, Keys, Sums, classified

_ANSWER = """\
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForQuestionAnswering.from_pretrained("path/to/this/folder")
inputs = tokenizer("A question?", "The text that answers it.", return_tensors="pt")
output = model(**inputs)
first, last = output.start_logits.argmax(), output.end_logits.argmax()
tokenizer.decode(inputs["input_ids"][0, first : last + 1])"""


NO_ANSWER = "(no answer)"
_ROOM = 300  # characters shown of a text in the report


class Answer(NamedTuple):
    """The span of a text that answers a question, unchanged; "" if there is none.

    The probability is relative to the `task.n_best` likeliest answers.
    """

    text: str
    probability: float


class SpanKind(Kind):
    """Examples are questions about texts; a long text is read in several windows, one per row."""

    name, network = "span", SpanNetwork
    metrics = ("f1", "exact_match")
    may_abstain = True
    global_tokens = FIRST_SEGMENT
    unit, pair = "article", "a question and a text"
    options = ("doc_stride", "max_query", "max_answer", "n_best", "null_threshold")
    card = Card(
        "question-answering",
        "finds the answer to a question in a text",
        _ANSWER,
        '("a question?", "the text that answers it"), ("another?", "a text")',
        "`start_logits` and `end_logits` have a number per token: how likely the answer begins or ends there",
    )

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        logits, weights = forward.model.span_logits(forward(batch)), batch["label_weights"]
        # [B, S, L]: each sequence of a row chooses among its own tokens.
        own = batch["sequence_ids"][:, None] == jnp.arange(1, weights.shape[1] + 1)[:, None]
        masked = jnp.where(own[..., None], logits[:, None], jnp.finfo(jnp.float32).min)
        ends = [classified(masked[..., n], batch[name], weights) for n, name in enumerate(("starts", "ends"))]
        return {name: (ends[0][name] + ends[1][name]) / 2 for name in ends[0]}

    def outputs(self, model: Any, hidden: jax.Array, batch: Batch) -> jax.Array:
        """Compute logits of start and end, [B, L, 2]; the lowest finite float gives padding probability 0."""
        real = (batch["sequence_ids"] > 0)[:, :, None]
        return jnp.where(real, model.span_logits(hidden), jnp.finfo(jnp.float32).min)

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        """Encode the questions. Raises ValueError naming a question that is too long under --strict-length."""
        options, counts, template = config.task, QuestionCounts(), get_family(config.model.family).template
        sizes = WindowSizes(config.data.sequence_length, options.doc_stride, options.max_query, template)
        unanswerable = options.no_answer_threshold is not None
        label_weights(options, (), lambda: np.empty(0, np.int64))  # raises ValueError for weights, without labels

        def windows(questions: Sequence[Question]) -> QuestionWindows:
            return question_windows(questions, tokenizer, sizes, counts, strict=options.strict_length)

        def split(name: str, questions: Sequence[Question]) -> Split:
            rows = windows(questions)

            def answers(logits: np.ndarray) -> QuestionAnswers:
                return find_answers(rows, logits[:, 0], logits[:, 1], unanswerable, options.n_best, options.max_answer)

            def measure(logits: np.ndarray) -> Figures:
                return answer_figures(questions, answers(logits), unanswerable, options.null_threshold)

            def write(folder: Path, logits: np.ndarray) -> list[Path]:
                (folder / name).mkdir(exist_ok=True)
                return write_answers(answers(logits), folder / name, options.null_threshold)

            def judge(logits: np.ndarray) -> list[Judged]:
                return judge_answers(questions, answers(logits), options.null_threshold)

            if not all(question.answers or question.impossible for question in questions):
                return Split(rows.rows, write)
            baselines = no_answer_figures(questions) if unanswerable else {}
            return Split(rows.rows, write, measure, baselines, judge)

        train = windows(splits.train).rows
        dev = {name: split(name, questions) for name, questions in splits.dev.items()}
        test = {name: split(name, questions) for name, questions in splits.test.items()}
        notes = (*splits.notes, *counts.notices(sizes.max_length))
        return TaskContent(self, (), train, dev, test, task.metrics, notes)

    def shared_part(self, example: Question) -> Any:
        return example.article or example.context

    def expected_answer(self, example: Question) -> Any:
        return example.answers

    def load_measures(self, task: Task, name: str, examples: Sequence[Question], folder: AnyPath) -> dict[str, Measure]:
        path = folder / name / PREDICTIONS
        predictions = json.loads(read_run_file(path))
        if predictions.keys() != {one.id for one in examples}:
            raise mismatch_error(path)
        figures = squad2_figures if "exact" in task.metrics else squad_figures
        # Every figure is a mean over questions.
        each = [figures({one.id: [text for text, _ in one.answers]}, {one.id: predictions[one.id]}) for one in examples]
        table = {metric: np.array([one[metric] for one in each]) / 100 for metric in task.metrics}
        return {metric: lambda drawn, values=values: values[drawn].mean() for metric, values in table.items()}

    def predict(self, model: Inference, inputs: Sequence[Any]) -> list[Answer]:
        """Answer each question; a text without words has no answer."""
        pairs = [require_pair(value, number, self.pair) for number, value in enumerate(inputs, 1)]
        questions = [Question(f"input {n}", str(n), *pair, (), False) for n, pair in enumerate(pairs, 1)]
        task, threshold = model.task, model.null_threshold
        model.counts = counts = QuestionCounts()
        sizes = WindowSizes(model.max_length, task.doc_stride, task.max_query, model.template)
        windows = question_windows(questions, model.tokenizer, sizes, counts)
        logits = model.outputs(windows.rows)
        answers = find_answers(windows, logits[:, 0], logits[:, 1], threshold is not None, task.n_best, task.max_answer)
        texts = answers.predictions(threshold or 0.0) | dict.fromkeys(answers.without_span, "")
        return [
            Answer(texts[name], next((one["probability"] for one in best if one["text"] == texts[name]), 1.0))
            for name, best in answers.n_best.items()
        ]

    def lines(self, prediction: Answer) -> list[str]:
        return [f"{prediction.probability:6.1%}  {prediction.text or '(the text does not answer it)'}"]


SPAN = SpanKind()


def judge_answers(questions: Sequence[Question], answers: QuestionAnswers, null_threshold: float) -> list[Judged]:
    """Compare the prediction for each question with the expected answers; right is an exact match, once normalized."""
    predictions, judged = answers.predictions(null_threshold), []
    for question in questions:
        prediction, expected = predictions[question.id], [text for text, _ in question.answers] or [""]
        shares = (one["probability"] for one in answers.n_best[question.id] if one["text"] == prediction)
        right = bool(exact_match(prediction, expected))
        texts = (question.question, around(question.context, expected[0] or prediction))
        judged.append(Judged(texts, expected[0] or NO_ANSWER, prediction or NO_ANSWER, right, next(shares, 0.0)))
    return judged


def around(text: str, part: str) -> str:
    """Cut about `_ROOM` characters of a text around a part of it."""
    start = max(0, text.find(part) - _ROOM // 2)
    end = start + _ROOM
    return ("… " if start else "") + text[start:end].strip() + (" …" if end < len(text) else "")


def no_answer_figures(questions: Sequence[Question]) -> Figures:
    """Compute SQuAD 2.0's figures for "" as the answer to every question, the only possible constant answer."""
    figures = squad2_figures(
        {question.id: [text for text, _ in question.answers] for question in questions},
        {question.id: "" for question in questions},
    )
    shares = {name: value / 100 for name, value in figures.items() if not name.endswith(NO_SHARES)}
    return shares | {f"best_{name}": shares[name] for name in ("exact", "f1")}
