"""A family with another layout of two texts is fine-tuned on tasks of one text, and refused for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_tasks import content_of, sentences, small_config, small_start

from bertjax.config import FinetuneConfig

ROBERTA = {"family": "roberta", "pooler": "none", "type_vocab_size": 1}


def config_of(tmp_path: Path, columns: str, texts: int, **fields: object) -> FinetuneConfig:
    rows = [(*sentences(texts, seed=n), "ab"[n % 2]) for n in range(40)]
    for name in ("train", "dev"):
        lines = ["\t".join((*columns.split(), "label")), *("\t".join(row) for row in rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    start = small_start(tmp_path / "start", **fields)
    task = {"train": str(tmp_path / "train.tsv"), "dev": str(tmp_path / "dev.tsv"), "text": tuple(columns.split())}
    config = small_config("classification", start, tmp_path, tmp_path / "run", **task)
    return replace(config, task=replace(config.task, data="", label="label"))


@pytest.mark.parametrize(("fields", "columns"), [(ROBERTA, "text"), ({}, "text"), ({}, "first second")])
def test_one_text_or_a_bert_is_fine(fields: dict, columns: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, columns, len(columns.split()), **fields)
    assert len(content_of(config, small_start(tmp_path / "again", **fields)).train) == 40


def test_two_texts_of_another_layout_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path, "first second", 2, **ROBERTA)
    with pytest.raises(ValueError, match=r"model\.family='roberta': the rows of this task have two texts"):
        content_of(config, small_start(tmp_path / "again", **ROBERTA))
