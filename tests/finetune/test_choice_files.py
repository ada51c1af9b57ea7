"""Files of SWAG and CODAH, made-up and real."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bertjax.finetune.load import read_split
from bertjax.finetune.tasks import find_task

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
ROW = '0,v,1,He sits. Then he,He sits.,Then he,gold,"runs, fast.",sings.,eats.,"says ""no""."'
SWAG, CODAH = find_task("swag"), find_task("codah")


def fail_on_notice(line: str) -> None:
    pytest.fail(f"unexpected notice: {line}")


def test_swag_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f"{HEADER},label\n{ROW},3\n")
    (tmp_path / "val.csv").write_text(f"{HEADER},label\n{ROW},0\n")
    [example] = read_split(SWAG, tmp_path, "train", fail_on_notice)
    assert example.texts == (
        "He sits.", "Then he runs, fast.", "Then he sings.", "Then he eats.", 'Then he says "no".',
    )  # fmt: skip
    assert example.label == "3" and example.where == f"{tmp_path}/train.csv:2"
    assert read_split(SWAG, tmp_path, "dev", fail_on_notice)[0].label == "0"
    assert read_split(SWAG, tmp_path, "test", fail_on_notice) is None
    (tmp_path / "test.csv").write_text(f"{HEADER}\n{ROW}\n")
    assert [(e.id, e.label) for e in read_split(SWAG, tmp_path, "test", fail_on_notice)] == [("0", None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER},label\n{ROW},4\n", r"train.csv:2: label '4' is not one of 0, 1, 2, 3;"),
        (f"{HEADER},label\n{ROW.replace('eats.', '')},1\n", r"train.csv:2: 3 choices, but every example must have 4"),
        (f"{HEADER},label\n{ROW},1,5\n", r"train.csv:2: 13 fields for 12 columns"),
        (f"{HEADER}\n{ROW}\n", r"train.csv:1: no column 'label'; there are '', 'video-id'"),
        (f"{HEADER.replace('ending3', 'end')},label\n{ROW},1\n", r"train.csv:1: no column 'ending3'"),
        ("", r"train.csv: the file is empty;"),
    ],
)
def test_bad_swag_is_rejected_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_split(SWAG, tmp_path, "train", fail_on_notice)


def test_codah_is_read_from_fold_or_single_file(tmp_path: Path) -> None:
    rows = [f"o\tStart {n // 2}\ta{n}\tb\tc\td\t{n % 4}" for n in range(20)]
    (tmp_path / "full_data.tsv").write_text("".join(f"{row}\n" for row in rows))
    notices: list[str] = []
    splits = {split: read_split(CODAH, tmp_path, split, notices.append) for split in ("train", "dev", "test")}
    assert [[e.where.rpartition(":")[2] for e in examples] for examples in splits.values()] == [
        ["1", "2", "3", "4", "5", "6", "11", "12", "13", "14", "15", "16"], ["7", "8", "17", "18"],
        ["9", "10", "19", "20"],
    ]  # fmt: skip
    assert splits["dev"][0].texts == ("Start 3", "a6", "b", "c", "d") and splits["dev"][0].label == "2"
    assert len(notices) == 1 and "one file for all" in notices[0]
    assert read_split(CODAH, tmp_path / "full_data.tsv", "dev", fail_on_notice) == splits["dev"]
    (tmp_path / "train.tsv").write_text(rows[0] + "\n")
    assert len(read_split(CODAH, tmp_path, "train", fail_on_notice)) == 1
    (tmp_path / "train.tsv").write_text(rows[0] + "\no\tShort\ta\tb\tc\t1\n")
    with pytest.raises(ValueError, match=r"train.tsv:2: 6 fields for 7 columns"):
        read_split(CODAH, tmp_path, "train", fail_on_notice)


def test_missing_choice_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no dev set: none of val.csv, dev.csv is there"):
        read_split(SWAG, tmp_path, "dev", fail_on_notice)
    with pytest.raises(ValueError, match=r"no train set: none of train.tsv, codah.tsv, full_data.tsv is there"):
        read_split(CODAH, tmp_path, "train", fail_on_notice)


def test_real_choice_files_match_csv_module(real_data: Path) -> None:
    folder = real_data / "swag" / "swag_sample"
    with (folder / "val.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [(r["sent1"], *(f"{r['sent2']} {r[f'ending{n}']}" for n in range(4)), r["label"]) for r in rows]
    assert [(*e.texts, e.label) for e in read_split(SWAG, folder, "dev", fail_on_notice)] == expected
    assert len(expected) == 91
    notices: list[str] = []
    examples = [
        e for split in ("train", "dev", "test") for e in read_split(CODAH, real_data / "swag", split, notices.append)
    ]
    lines = (real_data / "swag" / "codah.tsv").read_text().splitlines()
    assert sorted((*e.texts, e.label) for e in examples) == sorted(tuple(line.split("\t")[1:]) for line in lines)
    assert len(examples) == 2776
