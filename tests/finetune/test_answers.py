"""Answers match an independent implementation of run_qa.py's rules on every question of real files."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertjax.finetune.data.examples import Question
from bertjax.finetune.data.questions import read_questions
from bertjax.finetune.encoding.answers import (
    N_BEST,
    NULL_ODDS,
    PREDICTIONS,
    QuestionAnswers,
    answer_figures,
    find_answers,
    write_answers,
)
from bertjax.finetune.encoding.question_windows import QuestionCounts, QuestionWindows, WindowSizes, question_windows
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

UNCASED = TextRules(lowercase=True, strip_accents=True)
XQUAD, CS224N = ("xquad.en.json", False), ("cs224n-dev-v2.0.json.xz", True)


def best_indexes(logits: np.ndarray, n_best: int) -> list[int]:
    """Sort tokens by logits like google-research/bert, ties by position (run_qa.py leaves their order open)."""
    return sorted(range(len(logits)), key=logits.tolist().__getitem__, reverse=True)[:n_best]


def run_qa_answers(
    windows: QuestionWindows, start: np.ndarray, end: np.ndarray, unanswerable: bool
) -> tuple[dict[str, str], dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Compute predictions, null odds and the n best like `postprocess_qa_predictions`."""
    offsets = windows.rows.offsets
    question_rows: dict[int, list[int]] = {}
    for row, question in enumerate(windows.question.tolist()):
        question_rows.setdefault(question, []).append(row)
    predictions, odds, n_bests = {}, {}, {}
    for number, question in enumerate(windows.questions):
        null, candidates = None, []
        for row in question_rows[number]:
            inside = slice(offsets[row], offsets[row + 1])
            starts, ends, spans = start[inside], end[inside], windows.spans[inside].tolist()
            score = starts[0] + ends[0]
            if null is None or null["score"] > score:
                null = {"offsets": (0, 0), "score": score, "start_logit": starts[0], "end_logit": ends[0]}
            first = [i for i in best_indexes(starts, 20) if spans[i][0] >= 0]
            last = [j for j in best_indexes(ends, 20) if spans[j][0] >= 0]
            for i, j in itertools.product(first, last):
                if j < i or j - i + 1 > 30:
                    continue
                span = (spans[i][0], spans[j][1])
                candidates.append(
                    {"offsets": span, "score": starts[i] + ends[j], "start_logit": starts[i], "end_logit": ends[j]}
                )
        if unanswerable:
            candidates.append(null)
        best = sorted(candidates, key=lambda x: x["score"], reverse=True)[:20]
        if unanswerable and not any(p["offsets"] == (0, 0) for p in best):
            best.append(null)
        best = [{"text": question.context[slice(*p["offsets"])], **p} for p in best]
        if len(best) == 0 or (len(best) == 1 and best[0]["text"] == ""):
            best.insert(0, {"text": "empty", "start_logit": 0.0, "end_logit": 0.0, "score": 0.0})
        scores = np.array([p.pop("score") for p in best])
        shares = np.exp(scores - np.max(scores))
        n_bests[question.id] = [
            {k: v if k == "text" else float(v) for k, v in p.items() if k != "offsets"} | {"probability": float(share)}
            for p, share in zip(best, shares / shares.sum(), strict=True)
        ]
        if not unanswerable:
            predictions[question.id] = best[0]["text"]
            continue
        real = next(p for p in best if p["text"] != "")
        odds[question.id] = float(null["score"] - real["start_logit"] - real["end_logit"])
        predictions[question.id] = "" if odds[question.id] > 0 else real["text"]
    return predictions, odds, n_bests


def require_equal(answers: QuestionAnswers, expected: tuple) -> None:
    predictions, odds, n_best = expected
    assert answers.predictions() == predictions
    assert answers.null_odds == odds
    assert [*answers.n_best] == [*n_best]
    for i, ours in answers.n_best.items():
        shares = [part["probability"] for part in ours], [part["probability"] for part in n_best[i]]
        assert shares[0] == pytest.approx(shares[1], rel=1e-4)
        keys = ("text", "start_logit", "end_logit")
        assert [[part[k] for k in keys] for part in ours] == [[part[k] for k in keys] for part in n_best[i]], i


@pytest.mark.parametrize(
    ("file", "sizes", "ties"),
    [
        pytest.param(CS224N, WindowSizes(), True, marks=pytest.mark.long),
        (XQUAD, WindowSizes(128, 32, 48), False),
        pytest.param(XQUAD, WindowSizes(128, 32, 48), True, marks=pytest.mark.long),
        pytest.param(CS224N, WindowSizes(128, 48, 48), False, marks=pytest.mark.long),
    ],
)
def test_find_answers_matches_run_qa_on_real_questions(
    real_data: Path, file: tuple[str, bool], sizes: WindowSizes, ties: bool
) -> None:
    name, unanswerable = file
    questions = read_questions(real_data / "qa" / name, unanswerable)
    tokenizer = load_tokenizer(real_data / "vocab" / "bert-base-uncased", UNCASED)
    windows = question_windows(questions, tokenizer, sizes, QuestionCounts())
    logits = np.random.default_rng(len(questions) + ties).normal(0, 4, (2, len(windows.spans)))
    # Like the logits of a trained network: the right answers (or [CLS]) of a third of the questions are likely.
    rows = np.flatnonzero(windows.question % 3 == 0)
    for part, target in zip(logits, ("starts", "ends"), strict=True):
        part[windows.rows.offsets[rows] + windows.rows.rows[target][rows, 0]] += 14
    start, end = (np.round(logits) if ties else logits).astype(np.float32)
    answers = find_answers(windows, start, end, unanswerable)
    require_equal(answers, run_qa_answers(windows, start, end, unanswerable))
    assert len(answers.best) == len(questions) and len({*answers.best.values()}) > len(questions) / 3
    if unanswerable:
        assert 100 < sum(not text for text in answers.predictions().values()) < len(questions) - 100


LETTERS = [*SPECIAL_TOKENS, *"abcdefghij"]


def make_windows(context: str, max_length: int = 16, doc_stride: int = 2) -> QuestionWindows:
    questions = [Question("f: question one", "one", "a", context, (), True)]
    tokenizer = WordPiece(LETTERS, UNCASED)
    return question_windows(questions, tokenizer, WindowSizes(max_length, doc_stride, 2), QuestionCounts())


def test_find_answers_breaks_ties_by_order() -> None:
    windows = make_windows("b c d e f g")
    zeros = np.zeros(len(windows.spans), np.float32)
    answers = find_answers(windows, zeros, zeros, unanswerable=True, n_best=4)
    # The first four tokens are [CLS] a [SEP] b, of which only b is in the text.
    assert [part["text"] for part in answers.n_best["one"]] == ["b", ""]
    answers = find_answers(windows, zeros, zeros, unanswerable=True, n_best=6)
    assert [part["text"] for part in answers.n_best["one"]] == ["b", "b c", "b c d", "c", "c d", "d", ""]
    assert answers.null_odds == {"one": 0.0} and answers.predictions() == {"one": "b"}
    assert answers.predictions(-1e-9) == {"one": ""}


def test_find_answers_limits_answer_length() -> None:
    windows = make_windows("b c d e f g")
    start, end = np.zeros((2, len(windows.spans)), np.float32)
    start[3], end[8], end[3] = 3, 3, 2
    start[1] = end[1] = 9  # in the question, which is not part of the text
    answers = find_answers(windows, start, end, unanswerable=False)
    assert answers.best == {"one": "b c d e f g"} and answers.null_odds == {}
    assert find_answers(windows, start, end, False, max_answer=5).best == {"one": "b"}
    assert find_answers(windows, start, end, False, max_answer=6).best == {"one": "b c d e f g"}


def test_no_answer_comes_from_window_with_lowest_score() -> None:
    windows = make_windows("b c d e f g", max_length=7)
    assert len(windows.rows) == 3
    start, end = np.zeros((2, len(windows.spans)), np.float32)
    cls = windows.rows.offsets[:-1]
    start[cls], end[cls] = [7, 1, 4], [3, 1, -2]
    start[8 + 3], end[8 + 3] = 0.25, 0.25
    answers = find_answers(windows, start, end, unanswerable=True)
    (null,) = [part for part in answers.n_best["one"] if not part["text"]]
    assert (null["start_logit"], null["end_logit"]) == (1, 1)
    assert answers.null_odds == {
        "one": 2 - answers.n_best["one"][1]["start_logit"] - answers.n_best["one"][1]["end_logit"]
    }


@pytest.mark.parametrize("unanswerable", [False, True])
def test_find_answers_without_span_gives_placeholder(unanswerable: bool) -> None:
    windows = make_windows("\u00ad")
    start, end = np.full((2, len(windows.spans)), 2, np.float32)
    answers = find_answers(windows, start, end, unanswerable)
    assert answers.without_span == {"one"}
    require_equal(answers, run_qa_answers(windows, start, end, unanswerable))
    assert answers.best == {"one": "empty"} and answers.predictions(5.0) == {"one": "empty"}


def test_write_answers_writes_official_files(tmp_path: Path) -> None:
    windows = make_windows("b c d")
    start, end = np.random.default_rng(0).normal(size=(2, len(windows.spans))).astype(np.float32)
    answers = find_answers(windows, start, end, unanswerable=True)
    threshold = answers.null_odds["one"] - 1
    assert [path.name for path in write_answers(answers, tmp_path, threshold)] == [PREDICTIONS, N_BEST, NULL_ODDS]
    read = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()}
    assert read == {PREDICTIONS: {"one": ""}, N_BEST: answers.n_best, NULL_ODDS: answers.null_odds}
    assert [*read[N_BEST]["one"][0]] == ["text", "probability", "start_logit", "end_logit"]
    (tmp_path / NULL_ODDS).unlink()
    assert len(write_answers(find_answers(windows, start, end, unanswerable=False), tmp_path)) == 2


def test_answer_figures_are_official_ones_as_shares() -> None:
    windows = make_windows("b c d")
    start, end = np.zeros((2, len(windows.spans)), np.float32)
    start[4] = end[4] = 2
    start[0] = 1
    (question,) = windows.questions
    questions = [replace(question, answers=(("c", 2),), impossible=False), replace(question, id="two")]
    answers = find_answers(replace(windows, questions=questions[:1]), start, end, unanswerable=True)
    assert answers.best == {"one": "c"} and answers.null_odds == {"one": -3.0}
    assert answer_figures(questions[:1], replace(answers, null_odds={}), False) == {"exact_match": 1.0, "f1": 1.0}
    both = QuestionAnswers(answers.best | {"two": "c"}, {"one": -3.0, "two": -1.0}, {})
    figures = answer_figures(questions, both, True)
    assert (figures["exact"], figures["f1"], figures["NoAns_exact"], figures["total"]) == (0.5, 0.5, 0.0, 2)
    assert (figures["best_exact"], figures["best_f1"], figures["best_f1_thresh"]) == (1.0, 1.0, -3.0)
    assert answer_figures(questions, both, True, figures["best_f1_thresh"])["f1"] == 1.0


def test_find_answers_rejects_malformed_logits() -> None:
    windows = make_windows("b c d")
    good = np.zeros(len(windows.spans), np.float32)
    with pytest.raises(ValueError, match="give one for each"):
        find_answers(windows, good, good[1:], unanswerable=False)
    with pytest.raises(ValueError, match="diverged"):
        find_answers(windows, good, good + np.nan, unanswerable=False)
