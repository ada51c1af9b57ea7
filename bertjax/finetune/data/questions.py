"""SQuAD's files, 1.1 and 2.0: questions about texts, each with the words of its text that answer it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertjax.finetune.data.examples import Question, missing, split_file, whole_text
from bertjax.finetune.data.tables import Notify

_MOST_BYTES = 64 << 20  # SQuAD's have 42 MB at most; as objects of Python JSON has up to 20 times as many
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_NAMES = {list: "a list", dict: "an object", str: "a text", int: "a whole number", bool: "true or false"}


def read_squad(unanswerable: bool, data: Path, split: str, notify: Notify) -> list[Question]:
    """The questions of SQuAD's file of a split in a folder, 2.0's where questions may be `unanswerable`, or of a file.

    Raises MissingSplitError if there is none, and ValueError as `read_questions` does.
    """
    names = [f"{split}-v{2.0 if unanswerable else 1.1}", split]
    path = data if data.is_file() else split_file(data, names, (".json",))
    if path is None:
        raise missing(data, split, [f"{name}.json" for name in names])
    return read_questions(path, unanswerable, labelled=split != "test")


def read_questions(path: Path, unanswerable: bool, *, labelled: bool = True) -> list[Question]:
    """The questions of a file in SQuAD's layout, in order; it may be compressed (.gz .bz2 .xz .zst).

    `unanswerable`: questions may have no answer, as in 2.0, where these have `is_impossible`. Where not `labelled`,
    answers may be left out. Raises ValueError naming file and question for what is missing or inconsistent: an answer
    that is not at its `answer_start`, an id that two questions have, a file without questions.
    """
    found: dict[str, Question] = {}
    for number, article in enumerate(_part(_read(path), "data", list, str(path)), 1):
        where = f"{path}: article {number}"
        for index, paragraph in enumerate(_part(article, "paragraphs", list, where), 1):
            for question in _questions(paragraph, f"{where}, paragraph {index}", path, unanswerable, labelled):
                if question.id in found:
                    raise ValueError(f"{question.where}: two questions have this id; give each its own")
                found[question.id] = replace(question, article=str(number))
    if not found:
        raise ValueError(f"{path}: no question in it; is it a file in SQuAD's layout?")
    return list(found.values())


def _questions(paragraph: Any, where: str, path: Path, unanswerable: bool, labelled: bool) -> Iterator[Question]:
    context = _text(paragraph, "context", where)
    for number, record in enumerate(_part(paragraph, "qas", list, where), 1):
        name = _text(record, "id", f"{where}, question {number}")
        yield _question(record, name, context, f"{path}: question {name}", unanswerable, labelled)


def _read(path: Path) -> Any:
    text = whole_text(path, _MOST_BYTES)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: no JSON ({error.msg}); SQuAD's files are one JSON object") from None
    except (ValueError, RecursionError) as error:  # a number with too many digits, or lists nested too deep
        raise ValueError(f"{path}: no JSON ({error}); SQuAD's files are one JSON object") from None


def _question(record: Any, name: str, context: str, where: str, unanswerable: bool, labelled: bool) -> Question:
    text = _text(record, "question", where)
    impossible = "is_impossible" in record and _part(record, "is_impossible", bool, where)
    answers: tuple[tuple[str, int], ...] = ()
    if labelled or "answers" in record:
        answers = tuple(_answer(answer, context, where) for answer in _part(record, "answers", list, where))
    if impossible and not unanswerable:
        raise ValueError(f"{where}: it is_impossible, and every question of SQuAD 1.1 has an answer; use squad2")
    if impossible and answers:
        raise ValueError(f"{where}: it has an answer, {answers[0][0]!r}, and yet is_impossible; remove one of them")
    if labelled and not impossible and not answers:
        remedy = "say is_impossible: true if there is none" if unanswerable else "give one, or use squad2"
        raise ValueError(f"{where}: no answer; {remedy}")
    return Question(where, name, text, context, answers, impossible)


def _answer(answer: Any, context: str, where: str) -> tuple[str, int]:
    text, start = _text(answer, "text", f"{where}, answer"), _part(answer, "answer_start", int, f"{where}, answer")
    there = context[max(start, 0) : max(start, 0) + len(text)]
    if start < 0 or there != text:
        at = context.find(text)
        elsewhere = f"it is at {at}" if at >= 0 else "it is not in the context"
        raise ValueError(
            f"{where}: answer {text!r} is not at character {start} of its context, where {there!r} is; {elsewhere}"
        )
    return text, start


def _text(holder: Any, key: str, where: str) -> str:
    text = _part(holder, key, str, where)
    if not text.strip():
        raise ValueError(f"{where}: its {key!r} is empty; fill it in")
    if broken := _NO_TEXT.search(text):
        raise ValueError(f"{where}: its {key!r} has {broken[0]!r} at character {broken.start()}; remove it")
    return text


def _part(holder: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(holder, dict):
        raise ValueError(f"{where}: a {type(holder).__name__} and no object with {key!r}; is it in SQuAD's layout?")
    if key not in holder:
        raise ValueError(f"{where}: no {key!r}; SQuAD's layout has it")
    if type(holder[key]) is not kind:
        raise ValueError(f"{where}: {key!r} is {str(holder[key])[:40]!r} and should be {_NAMES[kind]}")
    return holder[key]
