"""SQuAD's exact match and F1 in per cent, as the official evaluation scripts of 1.1 and 2.0 compute them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NOTHING = ("",)  # the expected answers of an unanswerable question

Answers = Mapping[str, Sequence[str]]  # expected answers by question id


def normalize(answer: str) -> str:
    """Normalize an answer: lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """Return 1 if a prediction equals one of the answers once both are normalized, else 0."""
    return float(any(normalize(predicted) == normalize(answer) for answer in answers))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """Compute the highest F1 between the words of a prediction and of an answer; 0 without answers."""
    return max((_word_f1(predicted, answer) for answer in answers), default=0.0)


def squad_figures(answers: Answers, predictions: Mapping[str, str]) -> dict[str, float]:
    """Compute SQuAD 1.1's `exact_match` and `f1`. Raises ValueError if the ids of predictions and questions differ."""
    _require_same(answers, predictions)
    exact = [exact_match(predictions[i], texts) for i, texts in answers.items()]
    overlap = [answer_f1(predictions[i], texts) for i, texts in answers.items()]
    return {"exact_match": 100.0 * sum(exact) / len(exact), "f1": 100.0 * sum(overlap) / len(overlap)}


def squad2_figures(
    answers: Answers, predictions: Mapping[str, str], no_answer: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Compute SQuAD 2.0's figures, under the official names; "" predicts that a question has no answer.

    These are `exact`, `f1`, `total`, and the same over questions with (`HasAns_`) and without (`NoAns_`) an answer.
    `no_answer` scores how unlikely an answer is, per question; it adds `best_exact` and `best_f1`, and the thresholds
    above which "" must be predicted to reach them. Raises ValueError as `squad_figures` does.
    """
    _require_same(answers, predictions)
    expected = {i: [text for text in texts if normalize(text)] or _NOTHING for i, texts in answers.items()}
    answered = {i: bool(texts) for i, texts in answers.items()}  # even if all normalize to "", like "the"
    scores = {
        "exact": {i: exact_match(predictions[i], texts) for i, texts in expected.items()},
        "f1": {i: _squad2_f1(predictions[i], texts) for i, texts in expected.items()},
    }
    figures: dict[str, float] = {}
    for prefix, has_answer in (("", None), ("HasAns_", True), ("NoAns_", False)):
        ids = [i for i in answered if has_answer is None or answered[i] == has_answer]
        if ids:
            figures |= {prefix + name: 100.0 * sum(by_id[i] for i in ids) / len(ids) for name, by_id in scores.items()}
            figures[f"{prefix}total"] = len(ids)
    if no_answer is not None:
        _require_same(answers, no_answer)
        for name, by_id in scores.items():
            best, threshold = _best_threshold(by_id, predictions, answered, no_answer)
            figures |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return figures


def _word_f1(predicted: str, answer: str) -> float:
    ours, theirs = normalize(predicted).split(), normalize(answer).split()
    shared = (Counter(ours) & Counter(theirs)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def _squad2_f1(predicted: str, answers: Sequence[str]) -> float:
    """Like `answer_f1`, but 1 if prediction and answer both have no words."""
    empty = [float(not normalize(predicted)) for answer in answers if not normalize(answer)]
    return max([answer_f1(predicted, answers), *empty])


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    answered: Mapping[str, bool],
    no_answer: Mapping[str, float],
) -> tuple[float, float]:
    """Find the threshold up to which questions should be answered: (best mean score in per cent, threshold)."""
    score = best = float(sum(not has for has in answered.values()))  # if no question is answered
    threshold = 0.0
    for i in sorted(no_answer, key=lambda i: no_answer[i]):
        # Answering this question too gains its score, or loses the point for a right "".
        score += scores[i] if answered[i] else -float(bool(predictions[i]))
        if score > best:
            best, threshold = score, no_answer[i]
    return 100.0 * best / len(scores), threshold


def _require_same(answers: Answers, predictions: Mapping[str, object]) -> None:
    if not answers:
        raise ValueError("no questions to evaluate predictions on")
    missing, unknown = answers.keys() - predictions.keys(), predictions.keys() - answers.keys()
    if missing or unknown:
        example = min(missing or unknown)
        raise ValueError(
            f"{len(missing)} questions have no prediction, and {len(unknown)} predictions no question: {example!r}"
        )
