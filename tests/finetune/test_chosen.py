"""What a run trains on and is measured by: a tenth is held out where there is no development set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_tasks import small_config, small_start, write_tags

from bertjax.finetune.chosen import Examples, read_examples
from bertjax.finetune.own_tasks import task_for
from bertjax.finetune.run import Start


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    return small_start(tmp_path_factory.mktemp("start"))


def read_from(path: Path, name: str, start: Start) -> Examples:
    config = small_config(name, start, path.parent, path.parent / "run")
    config = replace(config, task=replace(config.task, data="", train=str(path)))
    return read_examples(task_for(config.task), config)


def test_equal_texts_are_on_one_side_and_no_label_only_where_it_is_measured(tmp_path: Path, start: Start) -> None:
    lines = [f"text {number}\t{'often' if number % 3 else 'usual'}" for number in range(300)]
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join(["text\tlabel", *lines, *lines]) + "\n")
    before = read_from(path, "classification", start)
    held = [example.texts[0] for example in before.dev["dev"]]
    assert 30 < len(held) < 90 and {*held}.isdisjoint(example.texts[0] for example in before.train)
    assert len(held) == 2 * len({*held}) and len(held) + len(before.train) == 600

    # The only two of a label would be measured, and never learned.
    rare = [line.replace("often", "rare").replace("usual", "rare") if line.startswith(f"{held[0]}\t") else line
            for line in lines]  # fmt: skip
    path.write_text("\n".join(["text\tlabel", *rare, *rare]) + "\n")
    after = read_from(path, "classification", start)
    assert [example.texts[0] for example in after.dev["dev"]] == [text for text in held if text != held[0]]
    assert [example.texts[0] for example in after.train if example.label == "rare"] == [held[0]] * 2
    assert [example.id for example in after.train] == sorted((example.id for example in after.train), key=int)


def test_no_tag_is_only_where_it_is_measured(tmp_path: Path, start: Start) -> None:
    path = write_tags(tmp_path / "tags", train=200) / "train.conll"
    held = read_from(path, "pos", start).dev["dev"][0].words
    text = path.read_text().split("\n\n")
    place = next(n for n, one in enumerate(text) if [line.split()[0] for line in one.splitlines()] == [*held])
    text[place] = text[place].replace(" DET", " RARE", 1)
    path.write_text("\n\n".join(text))
    after = read_from(path, "pos", start)
    assert not any("RARE" in sentence.tags for sentence in after.dev["dev"])
    assert any("RARE" in sentence.tags for sentence in after.train)
