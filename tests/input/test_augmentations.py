"""Augmentations: what they do to a text, against their definitions, and how often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit

from bertjax.config import DataConfig
from bertjax.input.augmentations import registry
from bertjax.input.augmentations.reverse_complement import prepare
from bertjax.input.batches import PairBatches
from bertjax.input.randomness import derive_key, hash64
from bertjax.tokenization.symbols import ALPHABETS, make_symbols
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.tokenization.training import parse_kind

DNA, RNA = (make_symbols(*ALPHABETS[name]) for name in ("dna", "rna"))


def changed_texts(tokenizer: Tokenizer, texts: list[str], epoch: int) -> list[str]:
    ids, lengths = tokenizer.encode(texts)
    keys = hash64(derive_key(0, "pair", epoch), np.arange(len(texts)))
    tokens, after = prepare(tokenizer)(keys, lengths, ids, lengths)
    parts = np.split(tokens, np.cumsum(after)[:-1])
    return ["".join(tokenizer.tokens[number] for number in part) for part in parts]


def test_reverse_complement_of_letters():
    texts = ["AACGTN", "", "A", "GATTACA"]
    epochs = [changed_texts(DNA, texts, epoch) for epoch in range(16)]
    assert {epoch[0] for epoch in epochs} == {"AACGTN", "NACGTT"}
    assert {epoch[3] for epoch in epochs} == {"GATTACA", "TGTAATC"}
    assert {changed_texts(RNA, ["AACGU"], epoch)[0] for epoch in range(16)} == {"AACGU", "ACGUU"}
    assert {changed_texts(DNA, ["ACX"], epoch)[0] for epoch in range(16)} == {"AC[UNK]", "[UNK]GT"}


@pytest.mark.parametrize("written", ["kmers:3", "kmers:3:1"])
def test_reverse_complement_of_kmers(written):
    kind, argument = parse_kind(written)
    kmers = kind.given(argument)
    assert kmers is not None
    text, other = "ACGTTAGAC", "GTCTAACGT"
    both = {tuple(kmers.encode([one])[0].tolist()) for one in (text, other)}
    ids, lengths = kmers.encode([text])
    found = {
        tuple(prepare(kmers)(hash64(derive_key(epoch), np.arange(1)), lengths, ids, lengths)[0].tolist())
        for epoch in range(16)
    }
    assert found == both and len(both) == 2


def test_a_half_of_a_million_texts_is_complemented():
    texts = 1_000_000
    ids = np.tile(DNA.encode(["AC"])[0], texts)
    lengths = np.full(texts, 2)
    drawn = []
    for epoch in (0, 1):
        tokens, _ = prepare(DNA)(hash64(derive_key(5, "pair", epoch, 0), np.arange(texts)), lengths, ids, lengths)
        drawn.append(tokens[::2] != ids[0])
    assert all(abs(one.mean() - 0.5) < 5 * 0.5 / 1_000 for one in drawn)
    assert abs((drawn[0] == drawn[1]).mean() - 0.5) < 5 * 0.5 / 1_000  # epochs are independent
    assert abs((drawn[0][1:] == drawn[0][:-1]).mean() - 0.5) < 5 * 0.5 / 1_000  # and texts


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_rows_hold_the_text_or_its_reverse_complement(packing):
    data = DataConfig(
        sequence_length=16, rows="crops", packing=packing, augment=("reverse_complement",), mask_probability=1e-9
    )
    records = [[3], [14], [7], [9], [30]]
    split = MemorySplit(records, vocab_size=DNA.vocab_size)
    plain = PairBatches(split, DNA, replace(data, augment=()), 0, objectives=("mlm",))
    batches = PairBatches(split, DNA, data, 0, objectives=("mlm",))
    table = dict(zip(DNA.encode(["ACGTN"])[0].tolist(), DNA.encode(["TGCAN"])[0].tolist(), strict=True))
    numbers = np.arange(20 * batches.rows_per_epoch)
    flipped = 0
    for one, other in zip(*(_texts(some.rows(numbers)) for some in (plain, batches)), strict=True):
        opposite = [table[number] for number in reversed(one)]
        assert other in (one, opposite)
        flipped += other != one
    assert 25 <= flipped <= 75


def _texts(batch: dict[str, np.ndarray]) -> list[list[int]]:
    row, slot = np.nonzero(batch["mlm_weights"])
    batch["input_ids"][row, batch["mlm_positions"][row, slot]] = batch["mlm_labels"][row, slot]
    pairs = zip(batch["input_ids"], batch["sequence_ids"], strict=True)
    return [ids[numbers == n][1:-1].tolist() for ids, numbers in pairs for n in range(1, numbers.max() + 1)]


def test_wrong_augmentations_are_refused():
    with pytest.raises(ValueError, match=r"vocabulary's token 'L' has no reverse complement in it"):
        prepare(make_symbols(*ALPHABETS["esm2"]))
    with pytest.raises(ValueError, match=r"'reverse_complemnt' is unknown; did you mean 'reverse_complement'\?"):
        registry.choose(("reverse_complemnt",))
