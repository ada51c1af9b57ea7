"""Tags and numbers for the letters of sequences: reading, training, writing and predicting."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_tasks import load_content, small_config, small_start

from bertjax.finetune.data.tags import TagColumns, read_numbers, read_tags
from bertjax.finetune.run import Start, finetune
from bertjax.loaded import LoadedModel
from bertjax.run.run_directory import load_run
from bertjax.runtime.processes import alone
from bertjax.tokenization.symbols import CHARACTERS

LETTERS = CHARACTERS.build("esm2")
WEIGHT = {"A": 0.0, "C": 1.0, "D": -1.0, "E": 0.5}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return small_start(tmp_path_factory.mktemp("start"), LETTERS)


def sequences(count: int, seed: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return ["".join(draw.choice([*WEIGHT], draw.integers(6, 20))) for _ in range(count)]


def write_letters(folder: Path) -> Path:
    """Write train.jsonl and dev.jsonl; letters determine their number and tag, and the first has no number."""
    folder.mkdir()
    for seed, (name, count) in enumerate({"train": 160, "dev": 16}.items()):
        records = []
        for sequence in sequences(count, seed):
            numbers = [WEIGHT[letter] for letter in sequence]
            tags = "".join("H" if number > 0 else "E" for number in numbers)
            records.append({"sequence": sequence, "numbers": [None, *numbers[1:]], "structure": tags})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return folder


@pytest.mark.long
@pytest.mark.parametrize(("task", "label"), [("token-regression", "numbers"), ("token-classification", "structure")])
def test_letter_tasks_are_learned(start: Start, tmp_path: Path, task: str, label: str) -> None:
    data = write_letters(tmp_path / "data")
    config = small_config(task, start, data, tmp_path / "run", text=("sequence",), label=label, epochs=6)
    content = load_content(config, start)
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda line: None)
    assert result.figures[f"eval/{content.metrics[0]}"] > 0.9
    (prediction,) = LoadedModel(load_run(tmp_path / "run")).predict(["ACDE"])
    assert "".join(one[0] for one in prediction) == "ACDE"
    lines = [line.split("\t") for line in (tmp_path / "run/predictions/dev.conll").read_text().splitlines() if line]
    assert "".join(letter for letter, _ in lines) == "".join(sequences(16, 1))


def test_sequences_in_table_are_split_into_letters(tmp_path: Path) -> None:
    table = tmp_path / "train.csv"
    table.write_text("sequence,structure,flexibility\nMKT,HHE,0.5 nan -1\n")
    (tagged,) = read_tags(TagColumns("structure", "sequence"), False, table, "train", print)
    (numbered,) = read_numbers(TagColumns("flexibility", "sequence"), table, "train", print)
    assert (tagged.words, tagged.tags) == (("M", "K", "T"), ("H", "H", "E"))
    assert (numbered.words, numbered.tags) == (("M", "K", "T"), ("0.5", "", "-1.0"))


@pytest.mark.parametrize(
    ("sequence", "numbers", "message"),
    [
        ("MKT", [1, 2], "3 in 'sequence' and 2 in 'numbers'; give words, and a number for each"),
        ("MKT", "1 x 2", "'numbers' is '1 x 2', not a list of numbers"),
        ("MKT", [1, 2, float("inf")], "not a list of numbers"),
        ("MKT", 3, "not a list of numbers"),
        ("M KT", [1, 2, 3], "'sequence' is 'M KT', not a list of texts"),
    ],
)
def test_read_numbers_rejects_malformed_records(tmp_path: Path, sequence: str, numbers: object, message: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps({"sequence": sequence, "numbers": numbers}) + "\n")
    with pytest.raises(ValueError, match=rf"train\.jsonl:1: .*{message}"):
        read_numbers(TagColumns("numbers", "sequence"), path, "train", print)
