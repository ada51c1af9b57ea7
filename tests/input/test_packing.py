"""Packed rows hold every pair once, with the tokens and masks that it has alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input import epochs, packing
from bertjax.input.batches import RowBatches
from bertjax.input.packing import Packing, pack
from bertjax.input.targets import mlm

RowsOf = Literal["crops", "pieces", "documents", "doc_sentences", "full_sentences"]
SPECIALS = Specials()
PLAIN = DataConfig(sequence_length=64, max_predictions=10)
PACKED = replace(PLAIN, packing="pairs", pairs_per_row=5)


def batches(data: DataConfig, seed: int = 0) -> RowBatches:
    return RowBatches(MemorySplit(random_documents(60, seed=2, sentences=4, tokens=9)), SPECIALS, data, seed)


@settings(max_examples=100, derandomize=True)
@given(st.lists(st.integers(5, 64), max_size=200), st.integers(1, 9), st.integers(0, 2**63))
def test_pack_puts_every_pair_in_one_row(lengths: list[int], most: int, key: int) -> None:
    sizes = np.array(lengths, np.uint16)
    packing = pack(sizes, 64, most, key)
    assert sorted(packing.order.tolist()) == list(range(len(lengths)))
    rows = np.split(packing.order, packing.offsets[1:-1]) if len(packing) else []
    assert all(1 <= len(row) <= most and sizes[row].sum() <= 64 for row in rows)
    # No two rows fit in one, as for first-fit packing.
    contents = sorted((int(sizes[row].sum()), len(row)) for row in rows)
    assert not any(a + b <= 64 and m + n <= most for (a, m), (b, n) in pairwise(contents))
    again = pack(sizes, 64, most, key)
    assert (again.order == packing.order).all() and (again.offsets == packing.offsets).all()


def test_pack_shuffles_pairs_of_equal_length() -> None:
    sizes = np.full(3000, 20, np.uint16)
    one, other = pack(sizes, 64, 8, 1), pack(sizes, 64, 8, 2)
    assert len(one) == 1000
    assert (one.order != other.order).mean() > 0.99
    assert abs(np.corrcoef(one.order[:-1], one.order[1:])[0, 1]) < 0.1


def test_every_epoch_is_packed_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise equal lengths would share rows in the same way in every epoch."""
    keys: list[int] = []

    def record_key(lengths: np.ndarray, capacity: int, most: int, key: int) -> Packing:
        keys.append(key)
        return pack(lengths, capacity, most, key)

    monkeypatch.setattr(epochs, "pack", record_key)
    for seed in (0, 1):
        windows = batches(PACKED, seed)._epochs
        for epoch in range(3):
            windows.get(epoch)
    assert len({*keys}) == len(keys) == 6


def pairs_in(batch: dict[str, np.ndarray]) -> list[tuple]:
    """Extract each pair of a batch: its ids, token types, mask positions, mask labels and pair label."""
    pairs = []
    for row in range(len(batch["input_ids"])):
        for slot in np.flatnonzero(batch["pair_weights"][row]):
            places = np.flatnonzero(batch["sequence_ids"][row] == slot + 1)
            first = int(batch["cls_positions"][row, slot])
            assert places.tolist() == list(range(first, first + len(places)))
            positions = batch["mlm_positions"][row]
            mine = (batch["mlm_weights"][row] > 0) & (positions >= first) & (positions <= places[-1])
            pairs.append(
                (
                    tuple(batch["input_ids"][row, places].tolist()),
                    tuple(batch["token_type_ids"][row, places].tolist()),
                    tuple((positions[mine] - first).tolist()),
                    tuple(batch["mlm_labels"][row, mine].tolist()),
                    int(batch["pair_labels"][row, slot]),
                )
            )
    return pairs


@pytest.mark.parametrize("change", [{}, {"masking": "words"}, {"predict": "next"}, {"mask_probability": 0.02}])
def test_packing_does_not_change_pairs(change: dict) -> None:
    """The packed pairs of an epoch's plan equal those of single rows: tokens, segments, masks and labels."""
    epoch = 1
    plain, packed = batches(replace(PLAIN, **change)), batches(replace(PACKED, **change))
    for one in (plain, packed):
        one._epochs.rows = 10**9  # rows of one plan only, all of them
    alone = pairs_in(plain.rows(epoch * 10**9 + np.arange(len(plain._epochs.get(epoch)))))
    rows = packed.rows(epoch * 10**9 + np.arange(len(packed._epochs.get(epoch))))
    assert sorted(pairs_in(rows)) == sorted(alone)
    assert len(rows["input_ids"]) < 0.75 * len(alone)


@pytest.mark.parametrize("rows", ["pairs", "doc_sentences"])
def test_table_width_does_not_change_rows(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare tables of several widths with tables of whole rows."""
    objectives = ("mlm", "nsp") if rows == "pairs" else ("mlm", "sbo")
    draw = np.random.default_rng(0)
    split = MemorySplit([[int(n) for n in draw.integers(1, 40, k)] for k in draw.geometric(0.08, 300)])
    data = DataConfig(sequence_length=1024, rows=rows, packing="pairs", max_predictions=160, mask_count="random_round")
    batches = RowBatches(split, Specials(), data, 0, objectives=objectives)
    expected = batches.batch(0, 12)
    pairs = batches.pairs(np.arange(12))
    widths = packing.table_widths(split.sentence_offsets, pairs.first, pairs.count, 1024)
    assert np.unique(widths).tolist() == [128, 512, 1024]
    monkeypatch.setattr(packing, "_NARROWEST", 1024)
    for name, array in batches.batch(0, 12).items():
        np.testing.assert_array_equal(array, expected[name], name)


def test_packing_drops_only_predictions_without_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(PACKED, mask_count="each", mask_probability=0.3, max_predictions=40)
    whole, few = batches(data).batch(0, 20), 0.9
    slots = int(few * (whole["mlm_weights"] > 0).sum(axis=1).max())
    monkeypatch.setattr(mlm, "most_predictions", lambda _: slots)
    batch = batches(data).batch(0, 20)
    predictions = batch["mlm_weights"].sum(axis=1)
    assert (predictions == slots).any() and (predictions < slots).any()
    for name, array in batch.items():
        np.testing.assert_array_equal(array, whole[name][:, : array.shape[1]], name)


def test_unused_slots_are_empty_and_predictions_ascend() -> None:
    batch = batches(PACKED).batch(0, 40)
    used = batch["mlm_weights"] > 0
    assert (np.diff(used.astype(int), axis=1) <= 0).all(), "used slots first"
    for key in ("mlm_positions", "mlm_labels"):
        assert (batch[key][~used] == 0).all()
    steps = np.diff(batch["mlm_positions"], axis=1)
    assert (steps[used[:, 1:]] > 0).all()
    for key in ("cls_positions", "pair_labels"):
        assert (batch[key][batch["pair_weights"] == 0] == 0).all()
    padding = batch["sequence_ids"] == 0
    assert (batch["input_ids"][padding] == SPECIALS.pad_id).all() and (batch["token_type_ids"][padding] == 0).all()
    cls_ids = np.take_along_axis(batch["input_ids"], batch["cls_positions"], axis=1)
    assert (cls_ids[batch["pair_weights"] > 0] == SPECIALS.cls_id).all()


@pytest.mark.parametrize("rows", ["crops", "pieces", "documents", "doc_sentences", "full_sentences"])
def test_packed_rows_of_one_token_texts_have_room_for_masks(rows: RowsOf) -> None:
    data = DataConfig(sequence_length=24, pairs_per_row=8, rows=rows, packing="pairs")
    batch = RowBatches(MemorySplit([[1]] * 40), SPECIALS, data, 0, objectives=("mlm",)).batch(0, 2)
    assert batch["mlm_weights"].sum(axis=1).max() == 8
