"""Training and development sets are named files, files in a folder, or a tenth that is held out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_tasks import load_content, small_config, write_classes, write_questions, write_tags

from bertjax.finetune.kinds.kind import Splits
from bertjax.finetune.load import read_splits
from bertjax.finetune.run import Start
from bertjax.finetune.tasks import make_task


def read_from(path: Path, name: str, start: Start, **options: str) -> Splits:
    config = small_config(name, start, path.parent, path.parent / "run")
    config = replace(config, task=replace(config.task, **{"data": "", "train": str(path), **options}))
    return read_splits(make_task(config.task), config)


def test_held_out_split_keeps_equal_texts_and_labels(tmp_path: Path, start: Start) -> None:
    lines = [f"text {number}\t{'often' if number % 3 else 'usual'}" for number in range(300)]
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join(["text\tlabel", *lines, *lines]) + "\n")
    before = read_from(path, "classification", start)
    held_out = [example.texts[0] for example in before.dev["dev"]]
    assert 30 < len(held_out) < 90 and {*held_out}.isdisjoint(example.texts[0] for example in before.train)
    assert len(held_out) == 2 * len({*held_out}) and len(held_out) + len(before.train) == 600

    # The only two examples of a label must not be held out.
    rare = [line.replace("often", "rare").replace("usual", "rare") if line.startswith(f"{held_out[0]}\t") else line
            for line in lines]  # fmt: skip
    path.write_text("\n".join(["text\tlabel", *rare, *rare]) + "\n")
    after = read_from(path, "classification", start)
    assert [example.texts[0] for example in after.dev["dev"]] == [text for text in held_out if text != held_out[0]]
    assert [example.texts[0] for example in after.train if example.label == "rare"] == [held_out[0]] * 2
    assert [example.id for example in after.train] == sorted((example.id for example in after.train), key=int)


def test_held_out_sentences_have_no_unseen_tags(tmp_path: Path, start: Start) -> None:
    path = write_tags(tmp_path / "tags", train=200) / "train.conll"
    held_out = read_from(path, "pos", start).dev["dev"][0].words
    text = path.read_text().split("\n\n")
    place = next(n for n, one in enumerate(text) if [line.split()[0] for line in one.splitlines()] == [*held_out])
    text[place] = text[place].replace(" DET", " RARE", 1)
    path.write_text("\n\n".join(text))
    after = read_from(path, "pos", start)
    assert not any("RARE" in sentence.tags for sentence in after.dev["dev"])
    assert any("RARE" in sentence.tags for sentence in after.train)


def articles(path: Path, count: int) -> Path:
    """Write a file with `count` articles and a question about each."""
    whole = json.loads((write_questions(path.parent, train=count) / "train-v1.1.json").read_text())
    (article,) = whole["data"]
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]} for paragraph in article["paragraphs"]]}))
    return path


def rows(path: Path, labels: str) -> Path:
    path.write_text("text,label\n" + "".join(f"text {number},{label}\n" for number, label in enumerate(labels)))
    return path


@pytest.mark.parametrize("count", [2, 5, 18])
def test_small_training_sets_hold_out_an_example(tmp_path: Path, start: Start, count: int) -> None:
    for name, path in (
        ("squad", articles(tmp_path / "mine.json", count)),
        ("classification", rows(tmp_path / "mine.csv", "aabb" + "a" * (count - 2))),
        ("pos", write_tags(tmp_path, train=count) / "train.conll"),
    ):
        if name == "pos":
            text = path.read_text()
            path.write_text(f"{text}\n{text.replace('the DET', 'The DET')}")  # no tag is in a single sentence
        splits = read_from(path, name, start)
        assert len(splits.dev["dev"]) >= 1 and len(splits.train) >= 1
        assert splits == read_from(path, name, start)
        assert splits.notes[-1].startswith("no development set; ")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("squad", lambda folder: articles(folder / "mine.json", 1)),
        ("classification", lambda folder: rows(folder / "mine.csv", "abcde")),
        ("classification", lambda folder: rows(folder / "mine.csv", "a")),
    ],
)
def test_impossible_hold_out_names_the_file(
    tmp_path: Path, start: Start, name: str, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path)
    with pytest.raises(ValueError, match=r"too few examples to hold out .*; pass --dev FILE") as refusal:
        read_from(path, name, start)
    assert str(refusal.value).startswith(f"{path}:")


@pytest.mark.parametrize("name", ["pairs", "relevance"])
def test_query_is_held_out_with_all_its_passages(tmp_path: Path, start: Start, name: str) -> None:
    path = tmp_path / "mine.csv"
    lines = [f"query {n % 15},passage {n},{n % 2}\n" for n in range(60)]
    path.write_text("text,text_b,label\n" + "".join(lines))
    splits = read_from(path, name, start)
    held_out, trained = ({example.texts[0] for example in part} for part in (splits.dev["dev"], splits.train))
    assert held_out and trained and not held_out & trained


def test_figures_leave_out_unlabelled_test_rows(tmp_path: Path, start: Start) -> None:
    folder = write_classes(tmp_path / "folder", train=20, dev=6)
    labels = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[1:3]]
    (folder / "test.tsv").write_text("text\tlabel\na\t" + f"{labels[0]}\nb\t\nc\t{labels[1]}\n")
    content = load_content(small_config("classification", start, folder, tmp_path / "run"), start)
    test, classes = content.test["test"], [*content.labels]
    assert "test: 1 of 3 rows have no label; figures leave them out" in content.notes
    first, last = map(classes.index, labels)
    outputs = np.eye(len(classes), dtype=np.float32)[[first, 0, (last + 1) % len(classes)]]
    assert test.figures(outputs)["accuracy"] == 0.5 and [one.right for one in test.judge(outputs)] == [True, False]
    (folder / "test.tsv").write_text("text\na text\n")
    assert (
        load_content(small_config("classification", start, folder, tmp_path / "run"), start).test["test"].figures
        is None
    )


def test_unnamed_splits_come_from_folder(tmp_path: Path, start: Start) -> None:
    folder = write_classes(tmp_path / "folder", train=20, dev=6)
    (folder / "test.tsv").write_text("text\na text\n")
    other = rows(tmp_path / "other.csv", "ab" * 20)
    splits = read_from(other, "classification", start, data=str(folder))
    assert (len(splits.train), len(splits.dev["dev"]), len(splits.test["test"]), splits.notes) == (40, 6, 1, ())
    splits = read_from(Path(""), "classification", start, data=str(folder), train="", dev=str(other), test=str(other))
    assert (len(splits.train), len(splits.dev["dev"]), len(splits.test["test"])) == (20, 40, 40)


@pytest.mark.parametrize(
    ("name", "split", "file", "message"),
    [
        ("classification", "test", "tset.csv", "tset.csv: no test set: no such file or folder; correct the path"),
        ("classification", "dev", "dve.csv", "dve.csv: no dev set: no such file or folder; correct the path"),
        ("classification", "train", "trian.csv", "trian.csv: no train set: no such file or folder; correct the path"),
        ("classification", "test", "folder", "folder: no test set: none of test.csv"),
        ("rte", "test", "mine.csv", "mine.csv: no test set: a file, not a folder; name the folder"),
        ("swag", "test", "mine.csv", "mine.csv: no test set: a file, not a folder; name the folder"),
    ],
)
def test_named_split_must_exist(tmp_path: Path, start: Start, name: str, split: str, file: str, message: str) -> None:
    data = tmp_path / "data"
    if name == "classification":
        write_classes(data)
    for folder in (data, tmp_path / "folder"):
        folder.mkdir(exist_ok=True)
    rows(tmp_path / "mine.csv", "ab")
    for one in ("train", "dev"):
        if name == "rte":
            (data / f"{one}.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\tentailment\n")
        if name == "swag":
            (data / f"{one}.csv").write_text("sent1,sent2,ending0,ending1,ending2,ending3,label\na,b,c,d,e,f,0\n")
    with pytest.raises(ValueError, match=message):
        read_from(data / "train.tsv", name, start, **{"data": str(data), "train": "", split: str(tmp_path / file)})


def test_empty_split_is_rejected(tmp_path: Path, start: Start) -> None:
    line = "c\t{0}\ta\tb\tc\td\t0\n"  # too few for the fifth that is for development
    (tmp_path / "codah.tsv").write_text("".join(line.format(f"start {number}") for number in range(3)))
    with pytest.raises(ValueError, match=rf"{tmp_path}: its dev set is empty; name another file as --dev"):
        read_from(tmp_path / "codah.tsv", "codah", start, data=str(tmp_path), train="")
