"""Answers from the start and end logits of windows, decoded and written like transformers' run_qa.py does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from bertjax.finetune.data.examples import Question
from bertjax.finetune.encoding.question_windows import QuestionWindows
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.metrics.classification import require_finite
from bertjax.finetune.metrics.squad import squad2_figures, squad_figures
from bertjax.storage.files import replace_text

NO_SHARES = ("total", "thresh")  # suffixes of figures that are counts or scores
PREDICTIONS, N_BEST, NULL_ODDS = "predictions.json", "nbest_predictions.json", "null_odds.json"

_NO_SPAN = "empty"  # run_qa.py's answer if no span is possible
_AT_ONCE = 1 << 20  # tokens decoded together, padding included


@dataclass(frozen=True)
class QuestionAnswers:
    """The answers to questions, by id; `null_odds` is empty if all questions are answerable."""

    best: dict[str, str]  # the best span's text
    null_odds: dict[str, float]  # score of no answer minus score of the best span
    n_best: dict[str, list[dict[str, Any]]]  # text, probability, start_logit, end_logit; best first
    without_span: set[str] = field(default_factory=set)  # questions whose `best` is only a placeholder

    def predictions(self, null_threshold: float = 0.0) -> dict[str, str]:
        """Choose the answer to each question; "" if the null odds exceed the threshold."""
        return {i: "" if self.null_odds.get(i, -np.inf) > null_threshold else text for i, text in self.best.items()}


class _Spans(NamedTuple):
    """Candidate answers: question, characters in the text, and logits; arrays [candidates]."""

    question: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logit: np.ndarray  # float32
    end_logit: np.ndarray  # float32

    @property
    def score(self) -> np.ndarray:
        return self.start_logit + self.end_logit

    def at(self, index: np.ndarray | slice) -> _Spans:
        return _Spans(*(part[index] for part in self))


def find_answers(
    windows: QuestionWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    unanswerable: bool,
    n_best: int = 20,
    max_answer: int = 30,
) -> QuestionAnswers:
    """Answer the windows' questions from the logits of the windows' tokens, float32 [tokens].

    A window's candidates are spans of at most `max_answer` tokens of the text, from one of the `n_best` highest starts
    to one of the `n_best` highest ends. A question keeps the `n_best` candidates with the highest scores. If questions
    may be `unanswerable`, the lowest score of [CLS] over the windows scores the empty answer, which is always kept.
    Ties between logits are in the order of tokens, between scores in the order of windows, starts, ends, empty answer.

    Raises ValueError unless there is a finite logit for each token.
    """
    for part in (start_logits, end_logits):
        if part.shape != (len(windows.spans),):
            raise ValueError(
                f"logits have shape {part.shape}, but there are {len(windows.spans)} tokens; give one for each"
            )
    logits = np.stack([require_finite(part).astype(np.float32) for part in (start_logits, end_logits)])
    in_text = windows.spans[:, 0] >= 0
    parts = []
    # Rows are padded to the longest, in groups that fit in memory.
    at_once = max(1, _AT_ONCE // int(windows.rows.lengths.max()))
    for first in range(0, len(windows.rows), at_once):
        rows = np.arange(first, min(first + at_once, len(windows.rows)))
        starts, ends = (_find_highest(part, windows.rows, rows, n_best) for part in logits)
        start, end = np.broadcast_arrays(starts[:, :, None], ends[:, None, :])
        real = (start >= 0) & (end >= 0)
        start, end = start[real], end[real]
        is_span = (start <= end) & (end - start < max_answer) & in_text[start] & in_text[end]
        parts.append(_make_spans(windows, logits, start[is_span], end[is_span]))
    if unanswerable:
        # The empty answer of each question comes from its first window with the lowest score; its characters are -1.
        cls = windows.rows.offsets[:-1]
        order = np.lexsort((logits[0, cls] + logits[1, cls], windows.question))
        lowest = cls[order[np.unique(windows.question[order], return_index=True)[1]]]
        parts.append(_make_spans(windows, logits, lowest, lowest))
    spans = _Spans(*map(np.concatenate, zip(*parts, strict=True)))
    order = np.lexsort((-spans.score, spans.question))
    question = spans.question[order]
    rank = np.arange(len(order)) - np.searchsorted(question, question)
    return _collect(windows, spans.at(order[(rank < n_best) | (spans.start[order] < 0)]))


def answer_figures(
    questions: Sequence[Question], answers: QuestionAnswers, unanswerable: bool, null_threshold: float = 0.0
) -> dict[str, float]:
    """Compute the official figures as shares: `f1` and `exact_match`, or SQuAD 2.0's if `unanswerable`.

    SQuAD 2.0's `best_f1` and `best_exact` are reached with the null thresholds `best_f1_thresh` and
    `best_exact_thresh`.
    """
    expected = {question.id: [text for text, _ in question.answers] for question in questions}
    predictions = answers.predictions(null_threshold)
    if not unanswerable:
        figures = squad_figures(expected, predictions)
    else:
        best = squad2_figures(expected, answers.best, answers.null_odds)
        figures = squad2_figures(expected, predictions) | {name: best[name] for name in best if name[:5] == "best_"}
    return {name: value if name.endswith(NO_SHARES) else value / 100 for name, value in figures.items()}


def write_answers(answers: QuestionAnswers, folder: Path, null_threshold: float = 0.0) -> list[Path]:
    """Write the files of run_squad.py and run_qa.py: predictions, n best and, if there are any, null odds."""
    contents: dict[str, Any] = {PREDICTIONS: answers.predictions(null_threshold), N_BEST: answers.n_best}
    if answers.null_odds:
        contents[NULL_ODDS] = answers.null_odds
    for name, content in contents.items():
        replace_text(folder / name, json.dumps(content, indent=4) + "\n")
    return [folder / name for name in contents]


def _find_highest(logits: np.ndarray, rows: TaskRows, chosen: np.ndarray, n_best: int) -> np.ndarray:
    """Find the tokens with the highest logits in each chosen row, best first: int64 [n, n_best], padded with -1."""
    offsets, lengths = rows.offsets[chosen], rows.lengths[chosen, None]
    inside = np.arange(lengths.max()) < lengths
    filled = np.full(inside.shape, np.inf, np.float32)
    filled[inside] = -logits[offsets[0] : rows.offsets[chosen[-1] + 1]]
    highest = np.argsort(filled, axis=1, kind="stable")[:, :n_best]
    return np.where(highest < lengths, offsets[:, None] + highest, -1)


def _make_spans(windows: QuestionWindows, logits: np.ndarray, start: np.ndarray, end: np.ndarray) -> _Spans:
    """Make the spans from tokens `start` to tokens `end`; `logits` float32 [2, tokens] for starts and ends."""
    question = windows.question[np.searchsorted(windows.rows.offsets, start, side="right") - 1]
    return _Spans(question, windows.spans[start, 0], windows.spans[end, 1], logits[0, start], logits[1, end])


def _collect(windows: QuestionWindows, spans: _Spans) -> QuestionAnswers:
    answers = QuestionAnswers({}, {}, {})
    bounds = np.searchsorted(spans.question, np.arange(len(windows.questions) + 1)).tolist()
    for question, first, last in zip(windows.questions, bounds[:-1], bounds[1:], strict=True):
        ours = spans.at(slice(first, last))
        texts = [question.context[max(a, 0) : max(b, 0)] for a, b in zip(ours.start, ours.end, strict=True)]
        starts, ends, scores = (part.tolist() for part in (ours.start_logit, ours.end_logit, ours.score))
        if not any(texts):
            answers.without_span.add(question.id)
            texts, starts, ends, scores = ([_NO_SPAN, *texts], *([0.0, *part] for part in (starts, ends, scores)))
        answers.n_best[question.id] = [
            {"text": text, "probability": share, "start_logit": start, "end_logit": end}
            for text, share, start, end in zip(texts, softmax(scores).tolist(), starts, ends, strict=True)
        ]
        best = next(number for number, text in enumerate(texts) if text)
        answers.best[question.id] = texts[best]
        if (none := np.flatnonzero(ours.start < 0)).size:
            odds = ours.score[none[0]] - np.float32(starts[best]) - np.float32(ends[best])
            answers.null_odds[question.id] = float(odds)
    return answers
