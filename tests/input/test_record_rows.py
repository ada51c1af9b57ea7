"""Rows of records: crops and pieces of long records, packed or not, and the distribution of crop offsets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import FIRST_TOKEN, MemorySplit, Specials

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.plan import every_document
from bertjax.input.record_rows import build_crop_plan

SPECIALS = replace(Specials(), vocab_size=10**6)
DATA = DataConfig(sequence_length=12, max_predictions=4, mask_probability=0.2, rows="crops")
RECORDS = [[7], [25], [3, 4], [10], [1], [40, 2]]  # sentences do not matter


def make_sequences(data: DataConfig, epoch: int, seed: int = 0, rows: slice = slice(None)) -> list[list[int]]:
    """The ids of each sequence of an epoch before masking, without special tokens; token n is FIRST_TOKEN + n."""
    batches = RowBatches(MemorySplit(RECORDS, all_different=True), SPECIALS, data, seed, objectives=("mlm",))
    count = batches.rows_per_epoch
    batch = batches.rows((epoch * count + np.arange(count))[rows])
    row, slot = np.nonzero(batch["mlm_weights"])
    batch["input_ids"][row, batch["mlm_positions"][row, slot]] = batch["mlm_labels"][row, slot]
    texts = []
    for ids, numbers in zip(batch["input_ids"], batch["sequence_ids"], strict=True):
        for number in range(1, numbers.max() + 1):
            cls, *text, sep = ids[numbers == number].tolist()
            assert (cls, sep) == (SPECIALS.cls_id, SPECIALS.sep_id)
            texts.append(text)
    return texts


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_crops_give_each_record_one_row(packing):
    sizes = [sum(record) for record in RECORDS]
    starts = np.cumsum(sizes) - sizes + FIRST_TOKEN
    data = replace(DATA, packing=packing)
    offsets = []
    for epoch in range(8):
        rows = sorted(make_sequences(data, epoch))
        assert all(row == list(range(row[0], row[0] + len(row))) for row in rows)
        assert [len(row) for row in rows] == [min(size, 10) for size in sizes]
        offset = np.array([row[0] for row in rows]) - starts
        assert (offset >= 0).all() and (offset <= np.maximum(np.array(sizes) - 10, 0)).all()
        offsets.append(offset[-1])
    assert len(set(offsets)) > 3  # another crop in every epoch
    assert make_sequences(data, 3) == make_sequences(data, 3) != make_sequences(data, 3, seed=1)
    if packing == "none":  # a selection has the same rows
        assert make_sequences(data, 3)[2:4] == make_sequences(data, 3, rows=slice(2, 4))


def test_pieces_cover_each_record_once():
    rows = sorted(make_sequences(replace(DATA, rows="pieces", packing="pairs"), 1))
    assert [token for row in rows for token in row] == list(range(FIRST_TOKEN, FIRST_TOKEN + sum(map(sum, RECORDS))))
    assert [len(row) for row in rows] == [7, 8, 8, 9, 7, 10, 1, 8, 8, 9, 8, 9]


def test_crop_offsets_are_uniform():
    records, size, room = 1_000_000, 30, 10
    documents = np.arange(records + 1)
    plan = build_crop_plan(documents, documents * size, every_document(records), room=room, seed=3, epoch=2)
    offsets = plan.begin - documents[:-1] * size
    counts = np.bincount(offsets, minlength=size - room + 1)
    assert len(counts) == size - room + 1 and (plan.length == room).all()
    expected = records / len(counts)
    assert ((counts - expected) ** 2 / expected).sum() < 20 + 5 * np.sqrt(40)  # chi-square with 20 degrees of freedom
    other = build_crop_plan(documents, documents * size, every_document(records), room=room, seed=3, epoch=3)
    between_epochs = np.corrcoef(offsets, other.begin - documents[:-1] * size)[0, 1]
    between_records = np.corrcoef(offsets[1:], offsets[:-1])[0, 1]
    assert abs(between_epochs) < 5 / np.sqrt(records) > abs(between_records), "offsets are correlated"
