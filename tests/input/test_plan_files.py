"""Plans on disk: the same epochs with and without them, nothing damaged is used, and they do not pile up."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input import epochs, plan_files
from bertjax.input.batches import PairBatches
from bertjax.input.layout import Template

DATA = DataConfig(sequence_length=48, max_predictions=8, packing="pairs")
SPLIT = MemorySplit(random_documents(80, seed=2, sentences=6, tokens=9))


@pytest.fixture(autouse=True)
def _keep_small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_files, "LEAST_KEPT_BYTES", 0)


def batches(folder: Path | None, data: DataConfig = DATA, seed: int = 0) -> PairBatches:
    return PairBatches(SPLIT, Specials(), data, seed, folder)


def assert_same(one: PairBatches, other: PairBatches) -> None:
    assert one.rows_per_epoch == other.rows_per_epoch
    for epoch in (0, 1, 2):
        numbers = epoch * one.rows_per_epoch + np.arange(12)
        mine, theirs = one.rows(numbers), other.rows(numbers)
        assert all((mine[key] == theirs[key]).all() for key in mine)


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_a_plan_from_disk_is_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    data = replace(DATA, packing=packing)
    plain = batches(None, data)
    assert_same(batches(tmp_path / "plans", data), plain)
    monkeypatch.setattr(epochs, "build_plan", None)  # nothing can be built any more
    assert_same(batches(tmp_path / "plans", data), plain)


def test_other_inputs_are_other_plans(tmp_path: Path) -> None:
    for data, seed in (
        (DATA, 0),
        (DATA, 1),
        (replace(DATA, sequence_length=40), 0),
        (replace(DATA, packing="none"), 0),
    ):
        assert_same(batches(tmp_path, data, seed), batches(None, data, seed))


def test_other_objectives_and_templates_have_other_plans(tmp_path: Path) -> None:
    kept = []
    for kind in ({}, {"objectives": ("mlm",)}, {"objectives": ("mlm", "sop")}, {"template": Template(separators=2)}):
        opened = PairBatches(SPLIT, Specials(), DATA, 0, tmp_path, **kind)  # builds the first epoch's plan
        kept.append(len(list(tmp_path.glob("plan-*"))))
        again = PairBatches(SPLIT, Specials(), DATA, 0, tmp_path, **kind)
        for one in (opened, again):
            rows, plain = (made.rows(np.arange(20)) for made in (one, PairBatches(SPLIT, Specials(), DATA, 0, **kind)))
            assert all((rows[key] == plain[key]).all() for key in rows)
    assert kept == [1, 1, 2, 3], "mlm alone reads the plan of mlm and nsp"


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "no json"])
def test_a_damaged_plan_is_named_and_built_again(tmp_path: Path, damage: str) -> None:
    batches(tmp_path)
    (place,) = tmp_path.iterdir()
    path = place / "a_start.npy"
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-3] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-8])
    elif damage == "gone":
        path.unlink()
    else:
        (place / "plan.json").write_text("{")
    with pytest.warns(UserWarning, match=rf"plan {place}: .*; it is built again"):
        found = batches(tmp_path)
    assert_same(found, batches(None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches(tmp_path)


def test_they_do_not_pile_up_and_nothing_half_made_stays(tmp_path: Path) -> None:
    found = batches(tmp_path)
    found._epochs._cache.capacity = 1
    for epoch in range(9):
        found._epochs.get(epoch)
    assert len(list(tmp_path.iterdir())) == plan_files.MOST_KEPT


def test_a_full_disk_costs_nothing_but_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_files.np, "save", full)
    with pytest.warns(UserWarning, match="was not written"):
        found = batches(tmp_path)
    assert_same(found, batches(None))
    assert not list(tmp_path.iterdir())


def test_a_small_plan_is_not_worth_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_files, "LEAST_KEPT_BYTES", 1 << 20)
    batches(tmp_path)
    assert not list(tmp_path.iterdir())
