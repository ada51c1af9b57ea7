"""Data of tagging tasks: class weights, errors with file and line, and predictions in the test file's layout."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_tasks import load_content, small_config, write_questions, write_tags

from bertjax.finetune.run import Start


def test_tag_weights_are_equal_or_configured(start: Start, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "data", train=20, dev=4)
    tags = Counter(line.split()[1] for line in (data / "train.conll").read_text().splitlines() if line)

    def read_weights(**task: object) -> dict[str, set[float]]:
        content = load_content(small_config("pos", start, data, tmp_path / "run", **task), start)
        tokens, dev = content.train.tokens, content.dev["dev"].rows.tokens
        assert {*dev["label_weights"].tolist()} == {0.0, 1.0}
        real = tokens["label_weights"] > 0
        assert real.sum() == tags.total()
        pairs = zip(tokens["labels"][real].tolist(), tokens["label_weights"][real].tolist(), strict=True)
        weights: dict[str, set[float]] = {}
        for label, weight in pairs:
            weights.setdefault(content.labels[label], set()).add(weight)
        return weights

    assert read_weights() == {tag: {1.0} for tag in tags}
    balanced = {tag: {float(np.float32(tags.total() / len(tags) / count))} for tag, count in tags.items()}
    assert read_weights(balanced=True) == balanced and len({*tags.values()}) > 1
    class_weights = tuple(float(number) for number in range(1, len(tags) + 1))
    assert read_weights(class_weights=class_weights) == {
        tag: {class_weights[place]} for place, tag in enumerate(sorted(tags))
    }


@pytest.mark.parametrize(
    ("task", "write", "options", "message"),
    [
        ("pos", write_tags, {"balanced": True, "class_weights": (1.0,) * 5}, "give one of them"),
        ("pos", write_tags, {"class_weights": (1.0, 2.0)}, "for each label: ADJ, DET, NOUN, PUNCT, VERB"),
        ("squad", write_questions, {"balanced": True}, r"squad: .*\(--balanced\) are for tasks with labels; leave"),
        ("squad", write_questions, {"class_weights": (1.0, 2.0)}, "squad: task.class_weights .* are for tasks with"),
    ],
)
def test_invalid_class_weights_are_rejected(
    start: Start, tmp_path: Path, task: str, write, options: dict, message: str
) -> None:
    config = small_config(task, start, write(tmp_path / "data", 8, 4), tmp_path / "run", **options)
    with pytest.raises(ValueError, match=message):
        load_content(config, start)


def test_unknown_tag_is_named_by_its_line(start: Start, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "data", train=20, dev=4)
    lines = (data / "dev.conll").read_text().split("\n")
    wrong = len(lines) - 3  # inside the last sentence
    word = lines[wrong].split()[0]
    (data / "dev.conll").write_text("\n".join([*lines[:wrong], f"{word} ODD", *lines[wrong + 1 :]]))
    with pytest.raises(ValueError, match=rf"dev\.conll:{wrong + 1}: tag 'ODD' of '{re.escape(word)}' is not one of"):
        load_content(small_config("pos", start, data, tmp_path / "run"), start)


def test_test_predictions_keep_the_file_layout(start: Start, tmp_path: Path) -> None:
    data = write_tags(tmp_path / "data", train=20, dev=4)
    (data / "test.txt").write_text("-DOCSTART- -X- ?\n\nthe D ?\nred J ?\n\ncat N ?\n")
    config = small_config("pos", start, data, tmp_path / "run")
    content = load_content(config, start)
    split = content.test["test"]
    logits = np.zeros((len(split.rows.tokens["input_ids"]), len(content.labels)), np.float32)
    logits[:, content.labels.index("NOUN")] = 1
    (data / "test.txt").write_text("another by now\n")
    (path,) = split.write(tmp_path, logits)
    assert (path.name, path.read_text()) == (
        "test.conll",
        "-DOCSTART- -X- ?\n\nthe D NOUN\nred J NOUN\n\ncat N NOUN\n",
    )
    (data / "test.txt").unlink()
    (data / "test.jsonl").write_text('{"tokens": ["the", "red"]}\n')
    split = load_content(config, start).test["test"]
    (path,) = split.write(tmp_path, logits[:4])
    assert path.read_text() == "the\tNOUN\nred\tNOUN\n\n"


@pytest.mark.parametrize(
    ("task", "values", "clause"),
    [
        ("token-classification", ["X", "Y", "Y"], "and are predicted to have the most frequent tag"),
        ("token-regression", [1, 2, 3], "and get no number"),
    ],
)
def test_words_without_token_are_reported(start: Start, tmp_path: Path, task: str, values: list, clause: str) -> None:
    records = [{"words": ["the", "\u00ad", word], "values": values} for word in ("cat", "dog", "owl")]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = small_config(task, start, tmp_path, tmp_path / "run", text=("words",), label="values")
    notes = load_content(config, start).notes
    assert f"6 of 18 words have no token; they are not trained on, {clause}" in notes


@pytest.mark.parametrize("split", ["train", "dev"])
def test_split_without_any_number_is_rejected(start: Start, tmp_path: Path, split: str) -> None:
    for name in ("train", "dev"):
        numbers = [None, None] if name == split else [1, None]
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"tokens": ["the", "cat"], "numbers": numbers}) + "\n")
    config = small_config("token-regression", start, tmp_path, tmp_path / "run")
    with pytest.raises(ValueError, match=rf"{split}\.jsonl:1: no word from here on has a number"):
        load_content(config, start)


@pytest.mark.parametrize(
    ("task", "record"),
    [("token-regression", {"tokens": ["the", "cat"], "numbers": [2, 2]}), ("regression", {"text": "cat", "label": 2})],
)
def test_patience_requires_different_numbers(start: Start, tmp_path: Path, task: str, record: dict) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    config = small_config(task, start, tmp_path, tmp_path / "run")
    assert len(load_content(config, start).train) == 1
    with pytest.raises(ValueError, match=r"task\.patience=2: all \d numbers of the development set are 2, so"):
        load_content(replace(config, task=replace(config.task, patience=2)), start)
