"""Files of SQuAD 1.1 and 2.0: questions about texts, answered by spans of the texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NotRequired, TypedDict

from bertjax.finetune.data.examples import Question, missing, split_file, whole_text
from bertjax.finetune.data.tables import Notify
from bertjax.storage.json_documents import parse_json


class _Answer(TypedDict):
    text: str
    answer_start: int


class _Question(TypedDict):
    id: str
    question: str
    answers: NotRequired[list[_Answer]]
    is_impossible: NotRequired[bool]


class _Paragraph(TypedDict):
    context: str
    qas: list[_Question]


class _Article(TypedDict):
    paragraphs: list[_Paragraph]


class _Squad(TypedDict):
    data: list[_Article]


def read_squad(unanswerable: bool, data: Path, split: str, notify: Notify) -> list[Question]:
    """Read a split of SQuAD from a folder (2.0's file if questions may be `unanswerable`), or from a file.

    Raises MissingSplitError for a missing file, and ValueError as `read_questions` does.
    """
    names = [f"{split}-v{2.0 if unanswerable else 1.1}", split]
    path = data if data.is_file() else split_file(data, names, (".json",))
    if path is None:
        raise missing(data, split, [f"{name}.json" for name in names])
    return read_questions(path, unanswerable, labelled=split != "test")


def read_questions(path: Path, unanswerable: bool, *, labelled: bool = True) -> list[Question]:
    """Read the questions of a file in SQuAD's layout, in order; it may be compressed (.gz .bz2 .xz .zst).

    `unanswerable`: as in 2.0, questions may be marked `is_impossible`. Unless `labelled`, answers may be missing.
    Raises ValueError naming file and question for missing or inconsistent parts: an answer that is not at its
    `answer_start`, two questions with the same id, a file without questions.
    """
    remedy = "is it in SQuAD's layout?"
    content: _Squad = parse_json(whole_text(path), str(path), _Squad, remedy=remedy, most_bytes=sys.maxsize)
    questions: dict[str, Question] = {}
    for number, article in enumerate(content["data"], 1):
        for paragraph in article["paragraphs"]:
            for record in paragraph["qas"]:
                where = f"{path}: question {record['id']}"
                if record["id"] in questions:
                    raise ValueError(f"{where}: two questions have this id; ids must be unique")
                question = _question(record, paragraph["context"], where, str(number), unanswerable, labelled)
                questions[record["id"]] = question
    if not questions:
        raise ValueError(f"{path}: no questions; {remedy}")
    return list(questions.values())


def _question(
    record: _Question, context: str, where: str, article: str, unanswerable: bool, labelled: bool
) -> Question:
    answers, impossible = record.get("answers"), record.get("is_impossible", False)
    for name, text in (("question", record["question"]), ("context", context)):
        if not text.strip():
            raise ValueError(f"{where}: the {name} is empty; fill it in")
        if "\0" in text:
            raise ValueError(f"{where}: the {name} has a NUL at character {text.index(chr(0))}; remove it")
    if impossible and not unanswerable:
        raise ValueError(f"{where}: is_impossible, but every question of SQuAD 1.1 has an answer; use squad2")
    if impossible and answers:
        raise ValueError(f"{where}: is_impossible, but it has the answer {answers[0]['text']!r}; remove one of the two")
    if labelled and not impossible and not answers:
        remedy = "set is_impossible: true if there is none" if unanswerable else "give one, or use squad2"
        raise ValueError(f"{where}: no answer; {remedy}")
    for answer in answers or ():
        text, start = answer["text"], answer["answer_start"]
        if start < 0 or not text.strip() or not context.startswith(text, start):
            at = context.find(text)
            raise ValueError(
                f"{where}: answer {text!r} is not at character {start} of its context"
                + (f"; it is at {at}" if text.strip() and at >= 0 else "; it is not in the context")
            )
    pairs = tuple((answer["text"], answer["answer_start"]) for answer in answers or ())
    return Question(where, record["id"], record["question"], context, pairs, impossible, article)
