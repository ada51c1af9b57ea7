"""XNLI: the files of its two archives, training on one language, and figures by language."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_tasks import small_config, small_start

from bertjax.finetune.data.examples import MissingSplitError
from bertjax.finetune.kinds import SEQUENCE
from bertjax.finetune.kinds.kind import Split, TaskContent
from bertjax.finetune.load import load_task, read_dev, read_split, read_splits
from bertjax.finetune.run import Result, by_set_and_mean, finetune
from bertjax.finetune.summary import TaskSummary
from bertjax.finetune.tasks import TASKS
from bertjax.pipeline.finetuning import FinetuneResult
from bertjax.runtime.processes import alone

HEADER = (
    "language\tgold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\t"
    "sentence2\tpromptID\tpairID\tgenre\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tsentence1_tokenized\t"
    "sentence2_tokenized\tmatch"
)
BEASTS, COLOURS = ["cat", "dog", "owl", "fox"], ["red", "green", "blue"]
LABELS = ["entailment", "neutral", "contradiction"]


def row(language: str, label: str, first: str, second: str, number: int = 1) -> str:
    fields = [language, label, "", "", "", "", first, second, "1", str(number), "facetoface", *[label] * 5]
    return "\t".join([*fields, first, second, "True"])


def pairs(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Draw pairs whose label follows from a colour: red entails, green is neutral, blue contradicts."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        kind = int(draw.integers(3))
        first = f"the {COLOURS[kind]} {draw.choice(BEASTS)} saw a {draw.choice(BEASTS)} ."
        rows.append((first, f"a {draw.choice(BEASTS)} .", LABELS[kind]))
    return rows


def write_xnli(
    folder: Path, languages: tuple[str, ...], train: int = 96, each: int = 16, archives: bool = True
) -> Path:
    """Write the two unpacked archives, or their files in one folder."""
    names = ("XNLI-MT-1.0/multinli", "XNLI-1.0") if archives else ("multinli", "")
    mt, own = (folder / name for name in names)
    for path in (mt, own):
        path.mkdir(parents=True, exist_ok=True)
    for seed, language in enumerate(languages):
        lines = [f"{a}\t{b}\t{label.replace('contradiction', 'contradictory')}" for a, b, label in pairs(train, seed)]
        (mt / f"multinli.train.{language}.tsv").write_text("\n".join(["premise\thypo\tlabel", *lines]) + "\n")
    for seed, split in enumerate(("dev", "test"), 9):
        lines = [
            row(language, label, a, b, number)
            for language in languages
            for number, (a, b, label) in enumerate(pairs(each, seed))
        ]
        (own / f"xnli.{split}.tsv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


def test_xnli_archives_are_read(tmp_path: Path) -> None:
    task = TASKS["xnli"]
    for archives in (True, False):
        folder = write_xnli(tmp_path / str(archives), ("de", "en", "zh"), train=3, each=2, archives=archives)
        train = read_split(task, folder, "train")
        assert [(one.texts, one.label) for one in train] == [(tuple(rest), label) for *rest, label in pairs(3, 1)]
        assert {one.label for one in train} <= set(LABELS)
        dev = read_dev(task, folder)
        assert [*dev] == ["dev_en", "dev_de", "dev_zh"]
        assert [one.texts for one in dev["dev_de"]] == [tuple(rest) for *rest, _ in pairs(2, 9)]
        assert read_split(task, folder, "test_zh")[1].id == "1" and read_split(task, folder, "test_sw") is None


def test_xnli_files_can_be_named(tmp_path: Path) -> None:
    folder = write_xnli(tmp_path, ("de", "en"), train=3, each=2)
    start = small_start(tmp_path / "model")
    german = folder / "XNLI-MT-1.0" / "multinli" / "multinli.train.de.tsv"
    config = small_config("xnli", start, folder, tmp_path / "run", train=str(german))
    splits = read_splits(TASKS["xnli"], config)
    assert splits.train[0].where == f"{german}:2" and [*splits.dev] == ["dev_en", "dev_de"]
    assert [*splits.test] == ["test_en", "test_de"]
    config = small_config("xnli", start, folder, tmp_path / "run", dev=str(folder / "XNLI-1.0" / "xnli.dev.tsv"))
    assert {name: len(some) for name, some in read_splits(TASKS["xnli"], config).dev.items()} == {"dev": 4}


def test_single_set_has_no_means_and_no_table(tmp_path: Path) -> None:
    split = Split(None, lambda *_: (), lambda _: {})
    content = TaskContent(SEQUENCE, (), None, {"dev": split}, {"test": split}, ("accuracy",), averaged=True)
    assert by_set_and_mean({"eval/accuracy": 0.5, "test/accuracy": 0.5}, content) == {}
    result = Result("run", 1, {"eval/sequence_loss": 1.0, "eval/accuracy": 0.5}, {}, 60.0, ())
    assert TaskSummary("xnli", ("accuracy",), {"": [result]}, {}, averaged=True).by_language() == []


def test_xnli_dev_set_requires_english(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_xnli(tmp_path, ("de", "zh"), train=1, each=2)
    with pytest.raises(
        ValueError, match=r"xnli\.dev\.tsv: no rows in the language en, which decides which run is best"
    ):
        read_dev(TASKS["xnli"], folder)
    folder = write_xnli(tmp_path / "both", ("de", "en"), train=1, each=2)
    dev = folder / "XNLI-1.0" / "xnli.dev.tsv"
    dev.write_bytes(
        dev.read_bytes() + row("en", "neutral", "a", "b", 9).encode().replace(b"\ta\t", b"\ta\xff\t", 1) + b"\n"
    )
    notices: list[str] = []
    read_dev(TASKS["xnli"], folder, notices.append)
    assert len(notices) == 1 and "xnli.dev.tsv" in notices[0] and not capsys.readouterr().out


def test_bad_xnli_files_are_rejected(tmp_path: Path) -> None:
    folder = write_xnli(tmp_path, ("en",), train=1, each=1)
    dev = folder / "XNLI-1.0" / "xnli.dev.tsv"
    dev.write_text(f"{HEADER}\n{row('en', 'maybe', 'a', 'b')}\n")
    with pytest.raises(ValueError, match=r"xnli\.dev\.tsv:2: .*'maybe'"):
        read_split(TASKS["xnli"], folder, "dev_en")
    dev.write_text("language\tsentence1\nen\ta\n")
    with pytest.raises(ValueError, match=r"xnli\.dev\.tsv:1: no column 'sentence2'"):
        read_split(TASKS["xnli"], folder, "dev_en")
    with pytest.raises(MissingSplitError, match=r"none of multinli\.train\.en\.tsv is there"):
        read_split(TASKS["xnli"], folder / "XNLI-1.0", "train")


@pytest.mark.long
def test_figures_by_language_and_their_mean(tmp_path: Path) -> None:
    data = write_xnli(tmp_path / "data", ("en", "de", "zh"))
    # The labels of one language are wrong, so that the figures differ.
    test = data / "XNLI-1.0" / "xnli.test.tsv"
    lines = test.read_text().splitlines()
    changed = [line.replace("\tneutral\t", "\tentailment\t", 1) if line.startswith("zh") else line for line in lines]
    test.write_text("\n".join(changed) + "\n")
    start = small_start(tmp_path / "model", num_hidden_layers=1)
    config = small_config("xnli", start, data, tmp_path / "run", epochs=6.0)
    content = load_task(config, start.tokenizer)
    assert [*content.dev, *content.test] == [
        f"{split}_{lang}" for split in ("dev", "test") for lang in ("en", "de", "zh")
    ]
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda line: None)
    figures = result.figures
    by_dev = [figures[f"eval/dev_{language}/accuracy"] for language in ("en", "de", "zh")]
    by_test = [figures[f"test_{language}/accuracy"] for language in ("en", "de", "zh")]
    assert by_dev[0] == figures["eval/accuracy"] > 0.9
    assert by_test[0] == by_test[1] > by_test[2]
    for name, language in (("en", 0), ("zh", 2)):
        rows = (tmp_path / "run" / "predictions" / f"test_{name}.tsv").read_text().splitlines()[1:]
        gold = [line.split("\t")[1] for line in test.read_text().splitlines() if line.startswith(name)]
        right = sum(row.split("\t")[1] == label for row, label in zip(rows, gold, strict=True))
        assert by_test[language] == right / len(gold)
    assert figures["eval/mean_accuracy"] == pytest.approx(np.mean(by_dev), abs=1e-12)
    assert figures["test/mean_accuracy"] == pytest.approx(np.mean(by_test), abs=1e-12)
    stored = json.loads((tmp_path / "run" / "results.json").read_text())["result"]["figures"]
    assert stored == figures


def test_summary_has_a_row_per_language() -> None:
    figures = {"eval/sequence_loss": 1.0, "eval/accuracy": 0.5, "eval/dev_de/accuracy": 0.25, "test_de/accuracy": 0.75}
    figures |= {"eval/dev_en/accuracy": 0.5, "eval/mean_accuracy": 0.375, "test/mean_accuracy": 0.75}
    result = Result("run", 1, figures, {}, 60.0, ())
    summary = TaskSummary("xnli", ("accuracy",), {"": [result]}, {}, averaged=True)
    assert summary.table().columns == (
        "setting",
        "seeds",
        "accuracy",
        "mean_accuracy",
        "test mean_accuracy",
        "minutes a run",
    )
    (table,) = summary.by_language()
    assert table.rows == (("de", "25.00", "75.00"), ("en", "50.00", ""))
    assert [table.title for table in FinetuneResult((summary,), ("",)).tables()] == ["xnli", "xnli by language"]
    assert TaskSummary("mnli", ("accuracy",), {"": [result]}, {}).by_language() == []
