"""The data of tasks whose examples are questions about texts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.finetune.answers import FoundAnswers, answer_figures, find_answers, write_answers
from bertjax.finetune.chosen import Examples, drawn
from bertjax.finetune.content import Figures, Split, TaskContent
from bertjax.finetune.examples import Question
from bertjax.finetune.label_weights import label_weights
from bertjax.finetune.question_windows import QuestionCounts, QuestionWindows, WindowSizes, question_windows
from bertjax.finetune.tasks import Task
from bertjax.tokenization.tokenizer import Tokenizer


def open_questions(task: Task, config: FinetuneConfig, tokenizer: Tokenizer, sets: Examples) -> TaskContent:
    """The content of a task of questions. Raises ValueError naming the question that is too long where that matters."""
    given, counts = config.task, QuestionCounts()
    sizes = WindowSizes(config.data.sequence_length, given.doc_stride, given.max_query)
    unanswerable = given.no_answer_threshold is not None
    label_weights(given, (), lambda: np.empty(0, np.int64))  # which are refused

    def windows(questions: Sequence[Question]) -> QuestionWindows:
        return question_windows(questions, tokenizer, sizes, counts, strict=given.strict_length)

    def split(name: str, questions: Sequence[Question]) -> Split:
        made = windows(questions)
        answers = partial(_answers, made, unanswerable, given.n_best, given.max_answer)
        labelled = all(question.answers or question.impossible for question in questions)
        return Split(
            made.rows,
            partial(_write, answers, name, given.null_threshold),
            partial(_figures, answers, questions, unanswerable, given.null_threshold) if labelled else None,
        )

    rows = windows(drawn(sets.train, config)).rows
    dev = {name: split(name, questions) for name, questions in sets.dev.items()}
    test = {name: split(name, questions) for name, questions in sets.test.items()}
    notes = (*sets.notes, *counts.told(sizes.max_length))
    return TaskContent(task.kind, (), rows, dev, test, task.metrics, notes)


def _answers(
    windows: QuestionWindows, unanswerable: bool, n_best: int, max_answer: int, logits: np.ndarray
) -> FoundAnswers:
    return find_answers(windows, logits[:, 0], logits[:, 1], unanswerable, n_best, max_answer)


def _figures(
    answers: partial[FoundAnswers],
    questions: Sequence[Question],
    unanswerable: bool,
    threshold: float,
    logits: np.ndarray,
) -> Figures:
    return answer_figures(questions, answers(logits), unanswerable, threshold)


def _write(answers: partial[FoundAnswers], name: str, threshold: float, folder: Path, logits: np.ndarray) -> list[Path]:
    """The official files, in a folder of the set's name."""
    (folder / name).mkdir(exist_ok=True)
    return write_answers(answers(logits), folder / name, threshold)
