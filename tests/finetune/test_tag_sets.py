"""Splits of tagged words are found by their usual file names and read in every format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertjax.finetune.data.examples import MissingSplitError
from bertjax.finetune.data.tags import TagColumns, write_words
from bertjax.finetune.kinds.kind import Task
from bertjax.finetune.kinds.tokens import TOKENS
from bertjax.finetune.load import read_dev, read_split, task_labels
from bertjax.finetune.tasks import find_task

CONLL = "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP B-PER\n"


def tags(task: Task, folder: Path, split: str) -> list[list[str] | None]:
    return [sentence.tags and [*sentence.tags] for sentence in read_split(task, folder, split)]


@pytest.mark.parametrize(
    ("train", "dev", "test"),
    [("train.txt", "valid.txt", "test.txt"), ("eng.train", "eng.testa", "eng.testb"), ("train", "dev.conll", "testb")],
)
def test_conll_splits_are_found(tmp_path: Path, train: str, dev: str, test: str) -> None:
    for name in (train, dev, test):
        (tmp_path / name).write_text(CONLL)
    ner = find_task("ner")
    assert tags(ner, tmp_path, "train") == [["B-ORG", "O"], ["B-PER"]]
    assert read_dev(ner, tmp_path)["dev"][0].where == f"{tmp_path / dev}:1"
    assert tags(ner, tmp_path, "test") == [None, None]
    assert task_labels(ner, read_split(ner, tmp_path, "train")) == ("B-ORG", "B-PER", "O")
    assert tags(TOKENS.tag_task(TagColumns("2")), tmp_path, "train") == [["NNP", "VBZ"], ["NNP"]]
    with pytest.raises(ValueError, match=f"{train}:1: tag 'NNP' of token 1: a tag is O, or one of"):
        read_split(TOKENS.tag_task(TagColumns("2"), entities=True), tmp_path, "train")
    (tmp_path / train).write_text(CONLL.replace("VBZ O", "VBZ X"))
    with pytest.raises(ValueError, match=f"{train}:2: tag 'X' of token 2: a tag is O, or one of"):
        read_split(ner, tmp_path, "train")


def test_treebank_splits_are_found(tmp_path: Path) -> None:
    for split, tag in (("train", "NOUN"), ("dev", "VERB")):
        line = "\t".join(["1", "a", "_", tag, "X", *"_____"])
        (tmp_path / f"en_ewt-ud-{split}.conllu").write_text(f"# sent_id = s\n{line}\n")
    pos = find_task("pos")
    assert tags(pos, tmp_path, "train") == [["NOUN"]] and tags(pos, tmp_path, "dev") == [["VERB"]]
    assert tags(TOKENS.tag_task(TagColumns("xpos")), tmp_path, "dev") == [["X"]]
    assert read_split(pos, tmp_path, "test") is None
    (tmp_path / "fr_gsd-ud-dev.conllu").write_text("")
    with pytest.raises(ValueError, match="both match; keep one of them there"):
        read_split(pos, tmp_path, "dev")
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(MissingSplitError, match=r"no train set: none of train\.\*, eng\.train\.\*, \*-ud-train"):
        read_split(pos, empty, "train")


def test_words_with_line_ends_are_written_on_one_line(tmp_path: Path) -> None:
    """Some data sets contain line ends as words."""
    record = {"tokens": ["a", "\n", "b\tc", "d\r"], "tags": ["X", "Y", "X", "Y"]}
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n" + json.dumps(record) + "\n")
    task = TOKENS.tag_task(TagColumns())
    sentences = read_split(task, tmp_path, "train")
    write_words(tmp_path / "dev.conll", sentences, [["X"] * 4] * 2)
    assert (tmp_path / "dev.conll").read_bytes() == b"a\tX\n \tX\nb c\tX\nd \tX\n\n" * 2
    measure = TOKENS.load_measures(task, "dev", sentences, tmp_path)["accuracy"]
    assert measure(np.array([0, 1])) == 0.5


def test_tag_records_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    records = [{"tokens": ["a", "b"], "tags": ["X", "Y"], "pos": ["N", "V"]}, {"tokens": ["c"], "tags": ["X"]}]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    own = TOKENS.tag_task(TagColumns())
    assert tags(own, tmp_path, "train") == [["X", "Y"], ["X"]]
    first = read_split(own, path, "train")[0]
    assert (first.where, first.id, first.words) == (f"{path}:1", "0", ("a", "b"))
    with pytest.raises(ValueError, match=r"train\.jsonl:2: .*pos"):
        read_split(TOKENS.tag_task(TagColumns("pos")), tmp_path, "train")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["X"]}, r":1: 2 in 'tokens' and 1 in 'tags'; give words, and a tag for each"),
        ({"tokens": [], "tags": []}, r":1: 0 in 'tokens'"),
        ({"tokens": "a b", "tags": ["X", "Y"]}, r":1: 'tokens' is 'a b', not a list of texts"),
        ({"tokens": ["a"], "tags": [3]}, r":1: 'tags' is '\[3\]', not a list of texts"),
        ({"tokens": ["a"]}, r":1: .*'tags'"),
        ({"tokens": ["a", "b\ud800"], "tags": ["X", "Y"]}, ":1: a string has a lone surrogate"),
    ],
)
def test_malformed_tag_records_are_rejected(tmp_path: Path, record: dict, message: str) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=message):
        read_split(TOKENS.tag_task(TagColumns()), tmp_path, "train")


def test_word_column_of_conll_files_is_fixed(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(CONLL)
    with pytest.raises(
        ValueError, match=r"train\.conll: task\.text='form' names the column of words in records, .*\(--text\)"
    ):
        read_split(TOKENS.tag_task(TagColumns(words="form")), tmp_path, "train")


def test_tag_records_are_read_from_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow: pip install 'bertjax[parquet]'")
    import pyarrow

    table = pyarrow.table({"tokens": [["a", "b"], ["c"]], "tags": [["X", "Y"], ["X"]]})
    parquet.write_table(table, tmp_path / "train.parquet")
    assert tags(TOKENS.tag_task(TagColumns()), tmp_path, "train") == [["X", "Y"], ["X"]]
