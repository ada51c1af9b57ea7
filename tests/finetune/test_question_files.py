"""SQuAD's files are read in order; errors name the file and the question."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from bertjax.finetune.data.examples import MissingSplitError
from bertjax.finetune.data.questions import read_questions
from bertjax.finetune.load import read_dev, read_split
from bertjax.finetune.tasks import find_task

CONTEXT = "Rollo was a Norse leader."


def squad(**question: Any) -> dict[str, Any]:
    """Make a file with one question, with some of its parts replaced, or left out if None."""
    record = {"id": "q1", "question": " Who?", "answers": [{"text": "Norse", "answer_start": 12}]} | question
    record = {key: value for key, value in record.items() if value is not None}
    return {"version": "1.1", "data": [{"title": "Normans", "paragraphs": [{"context": CONTEXT, "qas": [record]}]}]}


def write_file(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "unanswerable"), [("xquad.en.json", False), ("cs224n-dev-v2.0.json.xz", True)])
def test_real_squad_files_are_read_in_order(real_data: Path, name: str, unanswerable: bool) -> None:
    path = real_data / "qa" / name
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        articles = json.load(file)["data"]
    expected = [
        (str(n), p["context"], qa["id"], qa["question"], [(a["text"], a["answer_start"]) for a in qa["answers"]])
        for n, article in enumerate(articles, 1)
        for p in article["paragraphs"]
        for qa in p["qas"]
    ]
    questions = read_questions(path, unanswerable)
    assert [(q.article, q.context, q.id, q.question, [*q.answers]) for q in questions] == expected
    assert all(q.impossible == (not q.answers) for q in questions)
    if unanswerable:
        with pytest.raises(ValueError, match=r"question \w+: is_impossible, .* use squad2"):
            read_questions(path, unanswerable=False)


def test_squad_splits_are_found_in_folder(tmp_path: Path) -> None:
    one, two = find_task("squad"), find_task("squad2")
    (question,) = read_split(one, write_file(tmp_path / "train-v1.1.json", squad()), "train")
    assert question.where == f"{tmp_path / 'train-v1.1.json'}: question q1" and question.question == " Who?"
    assert read_split(one, tmp_path, "train") == [question]
    assert read_split(one, tmp_path, "test") is None
    with pytest.raises(MissingSplitError, match=r"no train set: none of train-v2\.0\.json, train\.json is there"):
        read_split(two, tmp_path, "train")
    write_file(tmp_path / "dev-v2.0.json", squad(answers=[], is_impossible=True))
    write_file(tmp_path / "test.json", squad(answers=None))
    assert [q.impossible for q in read_dev(two, tmp_path)["dev"]] == [True]
    (blind,) = read_split(two, tmp_path, "test")
    assert blind.answers == () and not blind.impossible


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (squad(answers=[{"text": "Norse", "answer_start": 10}]), r"'Norse' is not at character 10 .* it is at 12"),
        (squad(answers=[{"text": "Dane", "answer_start": 0}]), "it is not in the context"),
        (squad(answers=[{"text": "Rollo", "answer_start": -25}]), "not at character -25"),
        (squad(answers=[{"text": "", "answer_start": 0}]), "answer '' is not at character 0"),
        (squad(answers=[]), "no answer; set is_impossible: true if there is none"),
        (squad(answers=None), "no answer"),
        (squad(is_impossible=True), "is_impossible, but it has the answer 'Norse'"),
        (squad(question=" "), "the question is empty"),
        (squad(question="a\0b"), "the question has a NUL at character 1"),
    ],
)
def test_contradictory_questions_are_rejected(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = write_file(tmp_path / "train.json", content)
    with pytest.raises(ValueError, match=message) as error:
        read_questions(path, unanswerable=True)
    assert str(error.value).startswith(f"{path}: question q1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (squad(id=None), r"data\[0\].paragraphs\[0\].qas\[0\].id is missing and must be a string"),
        (squad(answers=[{"text": "Rollo"}]), r"data\S*answers\[0\].answer_start is missing and must be a whole number"),
        (squad(answers=[{"text": "Rollo", "answer_start": True}]), "answer_start is true, not a whole number"),
        (squad(question="a\ud800"), "a string has a lone surrogate"),
        ({"data": [{"paragraphs": []}]}, "no questions"),
        ([], "it holds a list of 0, not a mapping; is it in SQuAD's layout"),
        ({"data": [{"paragraphs": [{"context": " ", "qas": []}]}]}, "no questions"),
        ('{"data":\n[}', r"not JSON .*line 2"),
        ("[" * 100_000, "JSON nested deeper"),
    ],
)
def test_malformed_squad_files_are_rejected(tmp_path: Path, content: Any, message: str) -> None:
    path = write_file(tmp_path / "train.json", content)
    with pytest.raises(ValueError, match=message) as error:
        read_questions(path, unanswerable=True)
    assert str(error.value).startswith(str(path))


def test_repeated_question_id_is_rejected(tmp_path: Path) -> None:
    content = squad()
    content["data"] *= 2
    with pytest.raises(ValueError, match=r"train\.json: question q1: two questions have this id"):
        read_questions(write_file(tmp_path / "train.json", content), unanswerable=False)


def test_missing_or_binary_squad_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    with pytest.raises(ValueError, match="no such file"):
        read_questions(path, unanswerable=False)
    path.write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(ValueError, match=r"train\.json:2: not UTF-8 at byte 8"):
        read_questions(path, unanswerable=False)
