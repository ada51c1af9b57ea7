"""BioBERT's sets and LeNER-Br: reading, fine-tuning, and figures that match conlleval.pl."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_tasks import small_config, small_start
from test_entity_metrics import conlleval

from bertjax.finetune.data.examples import MissingSplitError
from bertjax.finetune.load import load_task, read_dev, read_split
from bertjax.finetune.metrics.entities import Entity, entities, entity_figures
from bertjax.finetune.run import finetune
from bertjax.finetune.tasks import TASKS
from bertjax.runtime.processes import alone

NCBI = "homologue\tO\nof\tO\nthe\tO\nadenomatous\tB\npolyposis\tI\ncoli\tI\ntumour\tI\nsuppressor\tO\n.\tO\n\n"
NCBI += "The\tO\nadenomatous\tB\n\n"
LENER = (
    "LEI B-LEGISLACAO\nDISTRITAL I-LEGISLACAO\nN.º I-LEGISLACAO\n5.815/17 I-LEGISLACAO\n. O\n\n`` O\nex O\ntunc O\n\n"
)
COLOURS, BEASTS = ["red", "green", "blue"], ["cat", "dog", "owl", "fox"]


def write_file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_biobert_sets_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "NERdata" / "NCBI-disease"
    for name in ("train_dev", "devel", "test"):
        write_file(folder / f"{name}.tsv", NCBI)
    notices: list[str] = []
    task = TASKS["ncbi-disease"]
    for data in (folder, folder.parent):
        one, two = read_split(task, data, "train", notices.append)
        assert one.words[-3:] == ("tumour", "suppressor", ".") and one.tags[3:7] == ("B", "I", "I", "I")
        assert two.words == ("The", "adenomatous") and two.tags == ("O", "B")
    assert (
        len(notices) == 2
        and "train_dev.tsv contains the development set, so its figures will be too high; use train.tsv" in notices[0]
    )
    write_file(folder / "train.tsv", "Only\tO\n\n")
    assert [sentence.words for sentence in read_split(task, folder, "train", notices.append)] == [("Only",)]
    assert len(notices) == 2
    assert [*read_dev(task, folder)] == ["dev"]
    assert read_split(task, folder, "test")[0].tags[3] == "B"  # test sets are tagged, to be measured
    with pytest.raises(MissingSplitError, match=r"none of train\.tsv, train_dev\.tsv is there"):
        read_split(TASKS["bc5cdr-chem"], folder.parent, "train")


def test_lener_br_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "leNER-Br"
    for split in ("train", "dev", "test"):
        write_file(folder / split / f"{split}.conll", LENER)
        write_file(folder / split / "ADI1TJDFT.conll", "Fls O\n")  # a single document, which is also in the joint file
    for data in (tmp_path, folder):
        for split in ("train", "dev", "test"):
            law, latin = read_split(TASKS["lener-br"], data, split)
            assert law.words[2:4] == ("N.º", "5.815/17") and law.tags[0] == "B-LEGISLACAO"
            assert latin.words == ("``", "ex", "tunc") and set(latin.tags) == {"O"}
    assert len(TASKS["lener-br"].labels) == 13
    write_file(folder / "dev" / "dev.conll", "um B-LEGISLACAO\nUm PESSOA\n")
    with pytest.raises(ValueError, match=r"dev\.conll:2: tag 'PESSOA' of token 2"):
        read_split(TASKS["lener-br"], folder, "dev")


def test_untyped_entities_match_conlleval() -> None:
    result = entities(["B", "I", "O", "I", "B", "B"])
    assert result == [
        Entity("", 0, 2),
        Entity("", 3, 4),
        Entity("", 4, 5),
        Entity("", 5, 6),
    ]
    draw = np.random.default_rng(0)
    for _ in range(200):
        ours, theirs = (draw.choice(["B", "I", "O"], 12).tolist() for _ in range(2))
        chunks = [conlleval([tag if tag == "O" else f"{tag}-X" for tag in tags], False) for tags in (ours, theirs)]
        figures = entity_figures([ours], [theirs])
        assert (figures.predicted, figures.labelled) == (len(chunks[0]), len(chunks[1]))
        assert figures.right == len(chunks[0] & chunks[1])


def write_tagged(path: Path, count: int, seed: int, separator: str, tags: tuple[str, str]) -> Path:
    """Write sentences such as `the red cat saw a dog .`, in which the colour and its beast are an entity."""
    draw, parts = np.random.default_rng(seed), []
    for _ in range(count):
        words = ["the", draw.choice(COLOURS), draw.choice(BEASTS), "saw", "a", draw.choice(BEASTS), "."]
        marks = ["O", *tags, "O", "O", "O", "O"]
        parts.append("".join(f"{word}{separator}{mark}\n" for word, mark in zip(words, marks, strict=True)))
    return write_file(path, "\n".join(parts) + "\n")


@pytest.mark.long  # tags are learned in test_run_comparison.py
@pytest.mark.parametrize(
    ("name", "files", "separator", "tags"),
    [
        ("ncbi-disease", "NCBI-disease/{}.tsv", "\t", ("B", "I")),
        ("lener-br", "leNER-Br/{0}/{0}.conll", " ", ("B-PESSOA", "I-PESSOA")),
    ],
)
def test_entity_set_is_learned_and_tested(
    tmp_path: Path, name: str, files: str, separator: str, tags: tuple[str, str]
) -> None:
    dev = "devel" if name.startswith("ncbi") else "dev"
    for seed, (split, count) in enumerate({"train": 64, dev: 16, "test": 16}.items()):
        test = write_tagged(tmp_path / files.format(split), count, seed, separator, tags)
    start = small_start(tmp_path / "model", num_hidden_layers=1)
    config = small_config(name, start, tmp_path, tmp_path / "run")
    content = load_task(config, start.tokenizer)
    assert content.labels == TASKS[name].labels and not content.notes
    with alone() as processes:
        result = finetune(config, start, content, processes, lambda line: None)
    assert result.figures["eval/f1"] > 0.9, result.figures
    # conlleval.pl's rules on the file of predictions, which is the test set with other tags.
    sides = []
    for path in (tmp_path / "run" / "predictions" / "test.conll", test):
        sentences = [part.splitlines() for part in path.read_text().strip().split("\n\n")]
        marks = [[line.split(separator)[1] for line in part] for part in sentences]
        typed = [[tag if "-" in tag or tag == "O" else f"{tag}-X" for tag in part] for part in marks]
        sides.append({(n, *chunk) for n, part in enumerate(typed) for chunk in conlleval(part, singles=False)})
    right = len(sides[0] & sides[1])
    assert result.figures["test/f1"] == pytest.approx(2 * right / (len(sides[0]) + len(sides[1])), abs=1e-12)
    assert result.figures["test/precision"] == pytest.approx(right / len(sides[0]), abs=1e-12)
    stored = json.loads((tmp_path / "run" / "results.json").read_text())["result"]["figures"]
    assert stored["test/f1"] == result.figures["test/f1"]
