"""Exact match and F1 match an independent implementation of SQuAD 1.1's and 2.0's rules on real questions."""

from __future__ import annotations

import collections
import functools
import json
import lzma
import re
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.metrics.squad import answer_f1, exact_match, normalize, squad2_figures, squad_figures


@functools.cache
def official_normalize(s: str) -> str:
    s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    s = re.sub(r"\b(a|an|the)\b", " ", s)
    return " ".join(s.split())


def official_f1(prediction: str, gold: str, second: bool) -> float:
    a, b = official_normalize(prediction).split(), official_normalize(gold).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    if second and (not a or not b):
        return float(a == b)
    if same == 0:
        return 0.0
    p, r = 1.0 * same / len(a), 1.0 * same / len(b)
    return (2 * p * r) / (p + r)


def official_1(articles: list[dict], predictions: dict[str, str]) -> dict[str, float]:
    f1 = em = total = 0.0
    for article in articles:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                total += 1
                golds = [answer["text"] for answer in qa["answers"]]
                prediction = predictions[qa["id"]]
                em += max(official_normalize(prediction) == official_normalize(gold) for gold in golds)
                f1 += max(official_f1(prediction, gold, False) for gold in golds)
    return {"exact_match": 100.0 * em / total, "f1": 100.0 * f1 / total}


def official_2(articles: list[dict], predictions: dict[str, str], na_probs: dict[str, float]) -> dict[str, float]:
    exact, f1, has_answer = {}, {}, {}
    for article in articles:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                has_answer[qa["id"]] = bool(qa["answers"])
                golds = [a["text"] for a in qa["answers"] if official_normalize(a["text"])] or [""]
                prediction = predictions[qa["id"]]
                exact[qa["id"]] = max(int(official_normalize(g) == official_normalize(prediction)) for g in golds)
                f1[qa["id"]] = max(official_f1(prediction, g, True) for g in golds)
    out = {}
    for prefix, ids in (
        ("", list(exact)),
        ("HasAns_", [k for k, v in has_answer.items() if v]),
        ("NoAns_", [k for k, v in has_answer.items() if not v]),
    ):
        out[f"{prefix}exact"] = 100.0 * sum(exact[k] for k in ids) / len(ids)
        out[f"{prefix}f1"] = 100.0 * sum(f1[k] for k in ids) / len(ids)
        out[f"{prefix}total"] = len(ids)
    for name, scores in (("exact", exact), ("f1", f1)):
        current = sum(1 for k in has_answer if not has_answer[k])
        best, thresh = current, 0.0
        for qid in sorted(na_probs, key=lambda k: na_probs[k]):
            if has_answer[qid]:
                diff = scores[qid]
            elif predictions[qid]:
                diff = -1
            else:
                diff = 0
            current += diff
            if current > best:
                best, thresh = current, na_probs[qid]
        out[f"best_{name}"], out[f"best_{name}_thresh"] = 100.0 * best / len(scores), thresh
    return out


@functools.cache
def read(question: str, context: str) -> tuple[str, float]:
    """Answer with a name that the question lacks, from the sentence that shares most words with the question."""
    question_words = set(re.findall(r"\w+", question.lower()))
    sentences = re.split(r"(?<=[.!?]) ", context)
    shares = [
        len(question_words & set(re.findall(r"\w+", sentence.lower()))) / len(question_words) for sentence in sentences
    ]
    best = max(range(len(sentences)), key=lambda number: shares[number])
    words = re.findall(r"\d[\d.,%]*|[A-Z]\w+(?: [A-Z]\w+)*", sentences[best])
    unseen = [word for word in words if word.lower() not in question_words]
    return (unseen[0] if unseen else ""), 1 - shares[best]


def questions(articles: list[dict]) -> list[tuple[dict, str]]:
    return [(qa, p["context"]) for article in articles for p in article["paragraphs"] for qa in p["qas"]]


def test_squad_1_on_real_predictions(real_data: Path) -> None:
    articles = json.loads((real_data / "qa" / "xquad.en.json").read_text(encoding="utf-8"))["data"]
    pairs = questions(articles)
    predictions = {qa["id"]: read(qa["question"], context)[0] for qa, context in pairs}
    answers = {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa, _ in pairs}
    ours, official = squad_figures(answers, predictions), official_1(articles, predictions)
    assert len(answers) == 1190 and 2 < ours["exact_match"] < ours["f1"] < 50
    assert {name: f"{value:.10f}" for name, value in ours.items()} == {k: f"{v:.10f}" for k, v in official.items()}


@pytest.mark.parametrize("knows_some", [False, True], ids=["guesses", "every third answer is right"])
@pytest.mark.parametrize(("number", "count"), [(4, 1494), pytest.param(None, 6078, marks=pytest.mark.long)])
def test_squad_2_on_real_predictions(real_data: Path, number: int | None, count: int, knows_some: bool) -> None:
    with lzma.open(real_data / "qa" / "cs224n-dev-v2.0.json.xz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"][:number]
    pairs = questions(articles)
    read_as = {qa["id"]: read(qa["question"], context) for qa, context in pairs}
    predictions = {i: text for i, (text, _) in read_as.items()}
    doubt = {i: share for i, (_, share) in read_as.items()}
    for qa, _ in pairs[::3] if knows_some else ():  # so that a threshold above 0 is best
        if qa["answers"]:
            predictions[qa["id"]], doubt[qa["id"]] = f"the {qa['answers'][0]['text']}", doubt[qa["id"]] / 4
    answers = {qa["id"]: [answer["text"] for answer in qa["answers"]] for qa, _ in pairs}
    ours, official = squad2_figures(answers, predictions, doubt), official_2(articles, predictions, doubt)
    assert len(answers) == count and ours["NoAns_total"] > count / 6
    assert (ours["best_f1_thresh"] > 0) == (ours["best_exact_thresh"] > 0) == knows_some
    assert ours["best_exact"] >= ours["exact"]
    assert {name: f"{value:.10f}" for name, value in ours.items()} == {k: f"{v:.10f}" for k, v in official.items()}
    assert "best_f1" not in squad2_figures(answers, predictions)


WORDS = st.lists(
    st.sampled_from(["the", "A", "an", "cat", "sat.", "(mat)", "", "  ", "1,000", "—", "Über"]), max_size=5
)


@settings(max_examples=200)
@given(WORDS.map(" ".join), st.lists(WORDS.map(" ".join), min_size=1, max_size=3))
def test_squad_metrics_match_official_code_on_any_words(predicted: str, golds: list[str]) -> None:
    assert normalize(predicted) == official_normalize(predicted)
    article = [{"paragraphs": [{"qas": [{"id": "q", "answers": [{"text": gold} for gold in golds]}]}]}]
    assert squad_figures({"q": golds}, {"q": predicted}) == pytest.approx(official_1(article, {"q": predicted}))
    assert 0 <= exact_match(predicted, golds) <= answer_f1(predicted, golds) + (not normalize(predicted)) <= 2
    non_empty = [gold for gold in golds if official_normalize(gold)] or [""]
    figures = squad2_figures({"q": golds}, {"q": predicted})
    assert figures["f1"] == pytest.approx(100 * max(official_f1(predicted, gold, True) for gold in non_empty))


def test_answer_may_be_an_article_alone() -> None:
    golds = {"a": ["the"], "b": ["the", "cat"], "c": []}
    predictions, doubt = {"a": "", "b": "cat", "c": "dog"}, {"a": 0.1, "b": 0.2, "c": 0.3}
    qas = [{"id": i, "answers": [{"text": text} for text in texts]} for i, texts in golds.items()]
    official = official_2([{"paragraphs": [{"qas": qas}]}], predictions, doubt)
    assert squad2_figures(golds, predictions, doubt) == pytest.approx(official) and official["HasAns_total"] == 2


def test_mismatched_question_ids_are_rejected() -> None:
    for predictions in ({"a": "x"}, {"a": "x", "b": "y", "c": "z"}):
        with pytest.raises(ValueError, match="questions have no prediction"):
            squad_figures({"a": ["x"], "b": ["y"]}, predictions)
    with pytest.raises(ValueError, match="no question"):
        squad_figures({}, {})
