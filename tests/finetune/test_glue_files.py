"""GLUE's tasks in every layout: made-up files, and all real files compared with other readers."""

from __future__ import annotations

import csv
import functools
import io
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertjax.config import TaskConfig
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.glue import DIAGNOSTICS
from bertjax.finetune.load import read_dev, read_split
from bertjax.finetune.tasks import TASKS, find_task, glue_tasks_in, make_task

# header of train and dev, a row; header of test, a row; texts and label of the first, texts of the second
OFFICIAL = {
    "cola": ("", "gj04\t0\t*\tIt runned.", "index\tsentence", "7\tIt ran.", ("It runned.",), "0", ("It ran.",)),
    "sst2": ("sentence\tlabel", 'a "fine film \t1', "index\tsentence", "7\tso so", ('a "fine film ',), "1", ("so so",)),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t5\t6\tOne.\tTwo.",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String", "7\t5\t6\tA.\tB.", ("One.", "Two."), "1", ("A.", "B."),
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
        "0\tg\tf\t2012\t1\tn\tn\tOne.\tTwo.\t3.750",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "7\tg\tf\t2012\t1\tn\tn\tA.\tB.", ("One.", "Two."), 3.75, ("A.", "B."),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "3\t1\t2\tOne?\tTwo?\t0",
        "id\tquestion1\tquestion2", "7\tA?\tB?", ("One?", "Two?"), "0", ("A?", "B?"),
    ),
    "mnli": (
        "index\tpromptID\tpairID\tgenre\tp\tq\tr\ts\tsentence1\tsentence2\tlabel1\tgold_label",
        "0\t1\t2\tg\t\t\t\t\tOne.\tTwo.\tneutral\tneutral",
        "index\tpromptID\tpairID\tgenre\tp\tq\tr\ts\tsentence1\tsentence2", "7\t1\t2\tg\t\t\t\t\tA.\tB.",
        ("One.", "Two."), "neutral", ("A.", "B."),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel", "0\tWho?\tHe.\tentailment", "index\tquestion\tsentence", "7\tA?\tB.",
        ("Who?", "He."), "entailment", ("A?", "B."),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel", "0\tOne.\tTwo.\tnot_entailment", "index\tsentence1\tsentence2",
        "7\tA.\tB.", ("One.", "Two."), "not_entailment", ("A.", "B."),
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel", "0\tOne.\tTwo.\t1", "index\tsentence1\tsentence2",
        "7\tA.\tB.", ("One.", "Two."), "1", ("A.", "B."),
    ),
}  # fmt: skip
FOLDERS = {
    "cola": "CoLA", "sst2": "SST-2", "mrpc": "MRPC", "stsb": "STS-B", "qqp": "QQP", "mnli": "MNLI", "qnli": "QNLI",
    "rte": "RTE", "wnli": "WNLI",
}  # fmt: skip


def fail_on_notice(line: str) -> None:
    pytest.fail(f"unexpected notice: {line}")


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines if line))
    return path


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_glue_layout_is_read(tmp_path: Path, name: str) -> None:
    header, row, test_header, test_row, texts, label, test_texts = OFFICIAL[name]
    task, folder = find_task(name), tmp_path / FOLDERS[name]
    first = f"{folder}/{{}}.tsv:{2 if header else 1}"
    for split in ("train", *task.dev_splits):
        write(folder / f"{split}.tsv", header, row)
        assert glue_tasks_in(tmp_path) == ((name,) if split != "train" else ())
        for data in (tmp_path, folder):
            assert read_split(task, data, split, fail_on_notice) == [
                TextExample(first.format(split), "0", texts, label)
            ]
    assert list(read_dev(task, tmp_path, fail_on_notice)) == list(task.dev_splits)
    for split in task.submissions:
        assert read_split(task, tmp_path, split, fail_on_notice) is None
        write(folder / f"{split}.tsv", test_header, test_row)
        assert read_split(task, tmp_path, split, fail_on_notice) == [
            TextExample(f"{folder}/{split}.tsv:2", "7", test_texts, None)
        ]


DIAGNOSTIC_FILES = ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX.tsv", "MNLI/diagnostic.tsv")


@pytest.mark.parametrize("file", DIAGNOSTIC_FILES)
def test_diagnostics_are_a_test_set_of_mnli(tmp_path: Path, file: str) -> None:
    task = find_task("mnli")
    assert task.submissions[DIAGNOSTICS] == "AX.tsv"
    (tmp_path / "MNLI").mkdir()
    assert read_split(task, tmp_path, DIAGNOSTICS, fail_on_notice) is None
    path = write(tmp_path / file, "index\tsentence1\tsentence2", "0\tOne.\tTwo.", '1\tA "b".\tC.')
    assert read_split(task, tmp_path, DIAGNOSTICS, fail_on_notice) == [
        TextExample(f"{path}:2", "0", ("One.", "Two."), None),
        TextExample(f"{path}:3", "1", ('A "b".', "C."), None),
    ]
    assert glue_tasks_in(tmp_path) == ()


MICROSOFT = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def test_mrpc_is_read_from_microsofts_files(tmp_path: Path) -> None:
    rows = [f"{n % 2}\t{n}\t{n + 100}\tFirst {n}.\tSecond {n}." for n in range(6)]
    write(tmp_path / "msr_paraphrase_train.txt", f"\ufeff{MICROSOFT}", *rows)
    write(tmp_path / "msr_paraphrase_test.txt", f"\ufeff{MICROSOFT}", rows[4])
    task = find_task("mrpc")
    with pytest.raises(ValueError, match=r"no train set: none of dev_ids.tsv, mrpc_dev_ids.tsv is there"):
        read_split(task, tmp_path, "train", fail_on_notice)
    write(tmp_path / "dev_ids.tsv", "1\t101", "5\t105", "2\t999")
    splits = {split: read_split(task, tmp_path, split, fail_on_notice) for split in ("train", "dev", "test")}
    assert {split: [e.texts[0][6] for e in examples] for split, examples in splits.items()} == {
        "train": ["0", "2", "3", "4"],
        "dev": ["1", "5"],
        "test": ["4"],
    }
    assert splits["dev"][1] == TextExample(
        f"{tmp_path}/msr_paraphrase_train.txt:7", "1", ("First 5.", "Second 5."), "1"
    )


def test_broken_rows_are_skipped_in_qqp_only(tmp_path: Path) -> None:
    header, row, *_ = OFFICIAL["qqp"]
    path = write(tmp_path / "train.tsv", header, row, "4\t1\t2\tOne?", row, "Two?\t1")
    notices: list[str] = []
    assert len(read_split(find_task("qqp"), tmp_path, "train", notices.append)) == 2
    assert notices == [f"{path}: left out 2 rows with fewer fields than columns, the first at {path}:3"]
    header, row, *_ = OFFICIAL["rte"]
    write(tmp_path / "train.tsv", header, row, "1\tOne.")
    with pytest.raises(ValueError, match=r"train.tsv:3: 2 fields for 4 columns"):
        read_split(find_task("rte"), tmp_path, "train", fail_on_notice)


@pytest.mark.parametrize("name", OFFICIAL)
def test_unknown_glue_labels_are_rejected(tmp_path: Path, name: str) -> None:
    header, row, *_ = OFFICIAL[name]
    label = row.split("\t")[{"cola": 1, "mrpc": 0}.get(name, -1)]
    path = write(tmp_path / "train.tsv", header, row, row.replace(f"\t{label}", "\tmaybe").replace("1\t5", "maybe\t5"))
    what = "not a finite number" if name == "stsb" else f"not one of {', '.join(find_task(name).labels)}"
    with pytest.raises(ValueError, match=rf"{path}:{3 if header else 2}: label 'maybe' is {what}"):
        read_split(find_task(name), tmp_path, "train", fail_on_notice)


def test_missing_glue_files_and_columns_are_named(tmp_path: Path) -> None:
    task = find_task("mnli")
    for read in (lambda: read_split(task, tmp_path, "train"), lambda: read_dev(task, tmp_path)):
        with pytest.raises(
            ValueError, match=rf"{tmp_path}: no (train|dev_matched) set: none of (train|dev_matched).tsv, "
        ):
            read()
    header, row, *_ = OFFICIAL["mnli"]
    write(tmp_path / "dev_mismatched.tsv", header, row)
    assert list(read_dev(task, tmp_path, fail_on_notice)) == ["dev_mismatched"]
    write(tmp_path / "train.tsv", header.replace("gold_label", "gold"), row)
    with pytest.raises(ValueError, match=r"train.tsv:1: no column 'gold_label'; there are 'index', 'promptID'"):
        read_split(task, tmp_path, "train", fail_on_notice)
    write(tmp_path / "train.tsv", "")
    with pytest.raises(ValueError, match=r"train.tsv: the file is empty"):
        read_split(task, tmp_path, "train", fail_on_notice)
    write(tmp_path / "test_matched.tsv", "sentence1\tsentence2", "A.\tB.")
    with pytest.raises(ValueError, match=r"test_matched.tsv:1: no column 'index'"):
        read_split(task, tmp_path, "test_matched", fail_on_notice)


def test_find_task_suggests_similar_names() -> None:
    assert all(name == task.name for name, task in TASKS.items())
    with pytest.raises(ValueError, match="task 'sst-2' is not known; did you mean sst2"):
        find_task("sst-2")


def test_unknown_task_lists_tasks_for_own_tables() -> None:
    with pytest.raises(
        ValueError, match="'sentiment' is not known; for your own table give classification, regression"
    ):
        make_task(TaskConfig(name="sentiment"))


def test_glue_rejects_folder_of_single_task(tmp_path: Path) -> None:
    folder = tmp_path / "glue" / "MRPC"
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t1\t2\ta\tb\n")
    with pytest.raises(ValueError, match=r"glue/MRPC is the folder of MRPC; name the folder above, .*glue, or"):
        glue_tasks_in(folder)
    assert glue_tasks_in(folder.parent) == ("mrpc",)
    (folder.parent / "train.tsv").touch()
    (folder.parent / "dev.tsv").touch()
    assert glue_tasks_in(folder.parent) == ("mrpc",)


# The real files against Python's csv module, or plain splitting.
REAL = [
    (name, split)
    for name in ("cola", "sst2", "mrpc", "stsb", "rte", "wnli", "qnli")
    for split in ("train", "dev")
    if (name, split) != ("qnli", "train")
]
COUNTS = {("sst2", "train"): 67_349, ("cola", "train"): 8_551, ("rte", "train"): 2_490, ("stsb", "dev"): 1_500}


@pytest.mark.parametrize(("name", "split"), REAL)
def test_real_glue_files_match_csv_module(real_data: Path, name: str, split: str) -> None:
    path = real_data / "glue" / FOLDERS[name] / f"{split}.tsv.xz"
    examples = read_split(find_task(name), real_data / "glue", split, fail_on_notice)
    with lzma.open(path, "rt", encoding="utf-8-sig", newline="") as file:
        text = file.read()
    rows = list(csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE))
    if name == "cola":
        expected = [((row[3],), row[1]) for row in rows]
    else:
        header, *rows = rows
        places = [header.index(column) for column in OFFICIAL[name][0].strip("\ufeff").split("\t")]
        assert places == list(range(len(header)))
        first = {"sst2": 0, "mrpc": 3, "stsb": 7}.get(name, 1)
        count = len(OFFICIAL[name][4])
        label = 0 if name == "mrpc" else len(header) - 1
        expected = [(tuple(row[first : first + count]), row[label]) for row in rows]
    if name == "stsb":
        expected = [(texts, float(label)) for texts, label in expected]
    assert [(example.texts, example.label) for example in examples] == expected
    assert len(examples) == COUNTS.get((name, split), len(expected)) == text.rstrip("\n").count("\n") + (name == "cola")
    assert examples[-1].where == f"{path}:{len(expected) + (name != 'cola')}"


@pytest.mark.parametrize("name", ["mnli", "qqp", "qnli"])
def test_real_glue_subsets_match_json(real_data: Path, name: str) -> None:
    folder = real_data / "glue_subsets"
    assert glue_tasks_in(folder) == ("qqp", "mnli", "qnli")
    task = find_task(name)
    dev = read_dev(task, folder, fail_on_notice)
    assert list(dev) == ["dev"]
    for split, examples in (("train", read_split(task, folder, "train", fail_on_notice)), ("dev", dev["dev"])):
        with lzma.open(folder / FOLDERS[name] / f"{split}.json.xz") as file:
            theirs = json.load(file)
        expected = [(key, (row["text_a"], row["text_b"]), row["label"]) for key, row in theirs.items()]
        assert [(e.id, e.texts, e.label) for e in examples] == expected
        assert examples[17].where.endswith(f"{split}.json.xz: record '17'")


SENTENCES = [f"Sentence {n}, an “example”." for n in range(5)]


@functools.cache
def glue_builder() -> type:
    """Define a small version of TensorFlow Datasets' `glue` with some of its configs, without downloads."""
    tfds = pytest.importorskip("tensorflow_datasets")
    classes = {name: ["entailment", "neutral", "contradiction"] for name in ("mnli", "ax")}
    classes["sst2"] = ["negative", "positive"]

    class Glue(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("2.0.0")
        BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ("sst2", "mnli", "stsb", "ax")]  # noqa: RUF012

        def _info(self):
            name = self.builder_config.name
            pairs = ("premise", "hypothesis") if name in ("mnli", "ax") else ("sentence1", "sentence2")
            texts = ("sentence",) if name == "sst2" else pairs
            label = tfds.features.ClassLabel(names=classes[name]) if name in classes else np.float32
            features = {text: tfds.features.Text() for text in texts} | {"label": label, "idx": np.int32}
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            suffixes = ("_matched", "_mismatched") if self.builder_config.name == "mnli" else ("",)
            dev_and_test = [f"{split}{suffix}" for split in ("validation", "test") for suffix in suffixes]
            splits = ("test",) if self.builder_config.name == "ax" else ("train", *dev_and_test)
            return {split: self._generate_examples(split) for split in splits}

        def _generate_examples(self, split) -> Iterator[tuple[int, dict]]:
            texts = [name for name in self.info.features if name not in ("label", "idx")]
            for n, sentence in enumerate(SENTENCES):
                label = -1 if split.startswith("test") else n % 2
                yield n, {text: f"{sentence} {split} {text}" for text in texts} | {"label": label, "idx": n + 10}

    return Glue


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("sst2", "mnli", "stsb", "ax"):
        glue_builder()(data_dir=str(folder), config=config).download_and_prepare()
    return folder


@pytest.mark.long  # the suite reads such data sets in tests/text/test_tfds.py
def test_glue_is_read_from_tensorflow_datasets(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    assert glue_tasks_in(Path("tfds:glue")) == ("sst2", "stsb", "mnli")
    examples = {e.id: e for e in read_split(find_task("sst2"), Path("tfds:glue/sst2"), "train", fail_on_notice)}
    assert sorted(examples) == ["10", "11", "12", "13", "14"]
    assert examples["13"].texts == (f"{SENTENCES[3]} train sentence",) and examples["13"].label == "1"
    assert "tfds:glue/sst2/train: record " in examples["13"].where
    test = read_split(find_task("sst2"), Path("tfds:glue"), "test", fail_on_notice)
    assert {e.label for e in test} == {None} and len(test) == 5
    diagnostics = read_split(find_task("mnli"), Path("tfds:glue"), DIAGNOSTICS, fail_on_notice)
    first = next(example for example in diagnostics if example.id == "10")
    assert first.texts == (f"{SENTENCES[0]} test premise", f"{SENTENCES[0]} test hypothesis") and first.label is None
    dev = read_dev(find_task("mnli"), Path("tfds:glue"), fail_on_notice)
    assert list(dev) == ["dev_matched", "dev_mismatched"]
    [third] = [e for e in dev["dev_mismatched"] if e.id == "11"]
    assert third.label == "neutral" and third.texts[1].endswith("validation_mismatched hypothesis")
    assert {e.label for e in read_split(find_task("stsb"), Path("tfds:glue"), "train", fail_on_notice)} == {0.0, 1.0}
    assert {e.label for e in read_split(find_task("stsb"), Path("tfds:glue"), "test", fail_on_notice)} == {None}
    with pytest.raises(ValueError, match="not this task's data set; name tfds:glue/mnli"):
        read_split(find_task("mnli"), Path("tfds:glue/sst2"), "train", fail_on_notice)
    with pytest.raises(ValueError, match=r"tfds:glue/rte: not prepared in data_dir"):
        read_split(find_task("rte"), Path("tfds:glue"), "train", fail_on_notice)
