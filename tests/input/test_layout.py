"""Layout of special tokens in rows of BERT and RoBERTa."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.layout import BERT, Template, lay_out

SPECIALS = Specials()
ROBERTA = Template(separators=2, token_types=False)
SPLIT = MemorySplit(random_documents(60, seed=2, sentences=4, tokens=9))
DATA = DataConfig(sequence_length=48, max_predictions=8, keep_share=1.0, random_share=0.0)


def test_lay_out_pairs_by_hand() -> None:
    tokens, lengths = np.array([11, 12, 13, 21, 31, 41, 42]), np.array([[3, 1], [1, 2]])
    encoder, is_text = lay_out(tokens, lengths, 9, SPECIALS, BERT)
    assert encoder["input_ids"].tolist() == [[2, 11, 12, 13, 3, 21, 3, 0, 0], [2, 31, 3, 41, 42, 3, 0, 0, 0]]
    assert encoder["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0, 0]]
    assert encoder["sequence_ids"].sum(axis=1).tolist() == [7, 6]
    assert encoder["input_ids"][is_text].tolist() == tokens.tolist()
    encoder, is_text = lay_out(tokens, lengths, 9, SPECIALS, ROBERTA)
    assert encoder["input_ids"].tolist() == [[2, 11, 12, 13, 3, 3, 21, 3, 0], [2, 31, 3, 3, 41, 42, 3, 0, 0]]
    assert not encoder["token_type_ids"].any()
    assert encoder["sequence_ids"].sum(axis=1).tolist() == [8, 7]
    assert encoder["input_ids"][is_text].tolist() == tokens.tolist()
    assert all(values.dtype == np.int32 for values in encoder.values())


@pytest.mark.parametrize("packing", ["none", "pairs"])
@pytest.mark.parametrize("objectives", [("mlm", "nsp"), ("mlm", "sop")], ids=" ".join)
def test_batches_with_another_template_are_well_formed(packing: str, objectives: tuple[str, ...]) -> None:
    data = replace(DATA, packing=packing)
    batches = RowBatches(SPLIT, SPECIALS, data, 0, objectives=objectives, template=ROBERTA)
    batch = batches.batch(0, 60)
    assert {key: (values.shape, values.dtype.type) for key, values in batch.items()} == batches.spec(60)
    full = 0
    for ids, numbers in zip(batch["input_ids"], batch["sequence_ids"], strict=True):
        for number in range(1, numbers.max() + 1):
            row = ids[numbers == number].tolist()
            first, second = (n for n, token in enumerate(row[:-1]) if token == SPECIALS.sep_id)
            assert row[0] == SPECIALS.cls_id and row[-1] == SPECIALS.sep_id
            assert second == first + 1 and first > 1 and second < len(row) - 2
            full += len(row) == 48
    assert full > 5
    labels = batch["mlm_labels"][batch["mlm_weights"] > 0]
    assert not np.isin(labels, list(SPECIALS.special.values())).any()


@pytest.mark.parametrize("rows", ["full_sentences", "doc_sentences"])
def test_running_text_does_not_depend_on_the_template(rows: str) -> None:
    data = replace(DATA, rows=rows)
    one, other = (RowBatches(SPLIT, SPECIALS, data, 0, template=template).batch(0, 20) for template in (BERT, ROBERTA))
    assert all((one[key] == other[key]).all() for key in one)
