"""Augmentations change texts as defined, and with the right frequency."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations
from math import factorial

import numpy as np
import pytest
from pair_corpora import MemorySplit

from bertjax.config import DataConfig
from bertjax.input.augmentations import randomised_smiles, registry
from bertjax.input.augmentations.reverse_complement import prepare
from bertjax.input.batches import RowBatches
from bertjax.input.randomness import derive_key, hash64
from bertjax.tokenization.symbols import ALPHABETS, PATTERNS, SPECIAL_TOKENS, make_symbols
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


@pytest.mark.parametrize("tokenizer", ["kmers:3", "kmers:3:1"])
def test_reverse_complement_of_kmers(tokenizer):
    kind, argument = parse_kind(tokenizer)
    kmers = kind.build(argument)
    assert kmers is not None
    text, other = "ACGTTAGAC", "GTCTAACGT"
    both = {tuple(kmers.encode([one])[0].tolist()) for one in (text, other)}
    ids, lengths = kmers.encode([text])
    results = {
        tuple(prepare(kmers)(hash64(derive_key(epoch), np.arange(1)), lengths, ids, lengths)[0].tolist())
        for epoch in range(16)
    }
    assert results == both and len(both) == 2


def test_reverse_complement_changes_half_of_the_texts():
    texts = 1_000_000
    ids = np.tile(DNA.encode(["AC"])[0], texts)
    lengths = np.full(texts, 2)
    is_changed = []
    for epoch in (0, 1):
        tokens, _ = prepare(DNA)(hash64(derive_key(5, "pair", epoch, 0), np.arange(texts)), lengths, ids, lengths)
        is_changed.append(tokens[::2] != ids[0])
    first, second = is_changed
    assert all(abs(one.mean() - 0.5) < 5 * 0.5 / 1_000 for one in is_changed)
    assert abs((first == second).mean() - 0.5) < 5 * 0.5 / 1_000, "epochs are not independent"
    assert abs((first[1:] == first[:-1]).mean() - 0.5) < 5 * 0.5 / 1_000, "texts are not independent"


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_rows_hold_the_text_or_its_reverse_complement(packing):
    data = DataConfig(
        sequence_length=16, rows="crops", packing=packing, augment=("reverse_complement",), mask_probability=1e-9
    )
    records = [[3], [14], [7], [9], [30]]
    split = MemorySplit(records, vocab_size=DNA.vocab_size)
    plain = RowBatches(split, DNA, replace(data, augment=()), 0, objectives=("mlm",))
    batches = RowBatches(split, DNA, data, 0, objectives=("mlm",))
    table = dict(zip(DNA.encode(["ACGTN"])[0].tolist(), DNA.encode(["TGCAN"])[0].tolist(), strict=True))
    numbers = np.arange(20 * batches.rows_per_epoch)
    flipped = 0
    for one, other in zip(*(_texts(some.rows(numbers)) for some in (plain, batches)), strict=True):
        opposite = [table[number] for number in reversed(one)]
        assert other in (one, opposite)
        flipped += other != one
    assert 25 <= flipped <= 75


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_augmented_rows_do_not_depend_on_host_or_restart(packing):
    split = MemorySplit([[5 + 3 * n] for n in range(24)], vocab_size=DNA.vocab_size)
    object.__setattr__(split, "groups", np.arange(24, dtype=np.uint64) % 9)
    data = DataConfig(
        sequence_length=32,
        rows="crops",
        packing=packing,
        augment=("reverse_complement",),
        groups="file:clusters.tsv",
        sampling="groups",
    )
    batches, step, size = RowBatches(split, DNA, data, 0, objectives=("mlm",)), 7, 6
    before = batches.batch(step - 1, size)
    whole = batches.batch(step, size)
    for hosts in (1, 2, 3):
        edges = np.linspace(0, size, hosts + 1).astype(int)
        parts = [
            RowBatches(split, DNA, data, 0, objectives=("mlm",)).batch(step, size, slice(begin, end))  # a new process
            for begin, end in pairwise(edges)
        ]
        assert all(np.array_equal(np.concatenate([part[key] for part in parts]), whole[key]) for key in whole)
    assert not np.array_equal(before["input_ids"], whole["input_ids"])


def _texts(batch: dict[str, np.ndarray]) -> list[list[int]]:
    row, slot = np.nonzero(batch["mlm_weights"])
    batch["input_ids"][row, batch["mlm_positions"][row, slot]] = batch["mlm_labels"][row, slot]
    pairs = zip(batch["input_ids"], batch["sequence_ids"], strict=True)
    return [ids[numbers == n][1:-1].tolist() for ids, numbers in pairs for n in range(1, numbers.max() + 1)]


SMILES = make_symbols(
    (*SPECIAL_TOKENS.values(), *"CNOFSl()=#123[]@+-cno/\\", "Cl", "[C@@H]", "[C@H]"), SPECIAL_TOKENS, PATTERNS["smiles"]
)
MOLECULES = ["C[C@H](N)C(=O)O", "Clc1ccc2c(c1)cno2", "F/C=C/F", "N", ""]


def spellings(texts: list[str], keys: np.ndarray, slack: int = 20) -> list[str]:
    """The randomised spellings of SMILES strings."""
    ids, lengths = SMILES.encode(texts)
    tokens, sizes = randomised_smiles.prepare(SMILES)(keys, lengths + slack, ids, lengths)
    ends = np.cumsum(sizes)
    return ["".join(SMILES.tokens[n] for n in tokens[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def test_randomised_smiles_are_the_same_molecules():
    chemistry = pytest.importorskip("rdkit.Chem")
    keys = hash64(derive_key(0, "pair", 0), np.arange(200))
    texts = MOLECULES * 40
    spelled = spellings(texts, keys)
    assert [chemistry.CanonSmiles(one) for one in spelled] == [chemistry.CanonSmiles(one) for one in texts]
    assert [len({*spelled[n::5]}) > 5 for n in range(5)] == [True, True, False, False, False]
    assert spelled == [spellings([text], keys[n : n + 1])[0] for n, text in enumerate(texts)]  # each text alone
    assert spelled != spellings(texts, hash64(derive_key(0, "pair", 1), np.arange(200)))


def test_randomised_smiles_draw_orders_uniformly():
    chemistry = pytest.importorskip("rdkit.Chem")
    molecule, draws = chemistry.MolFromSmiles("CC(N)O"), 5_000
    atoms = molecule.GetNumAtoms()
    expected = Counter(
        chemistry.MolToSmiles(chemistry.RenumberAtoms(molecule, list(order)), canonical=False)
        for order in permutations(range(atoms))
    )
    counts = Counter(spellings(["CC(N)O"] * draws, hash64(derive_key(7), np.arange(draws))))
    assert counts.keys() == expected.keys() and len(counts) == 12
    scale = draws / factorial(atoms)
    distance = sum((counts[one] - scale * count) ** 2 / (scale * count) for one, count in expected.items())
    assert distance < 11 + 5 * np.sqrt(22)  # chi-square with 11 degrees of freedom


def test_packed_rows_hold_randomised_smiles():
    chemistry = pytest.importorskip("rdkit.Chem")
    texts = ["CC(N)O", "CCOC(=O)c1ccncc1", "Clc1ccc2c(c1)cno2", "N#CC(C)(C)C"] * 4
    ids, lengths = SMILES.encode(texts)
    split = MemorySplit([[int(length)] for length in lengths], vocab_size=SMILES.vocab_size)
    split.flat[:] = ids
    data = DataConfig(sequence_length=48, rows="crops", packing="pairs", augment=("randomised_smiles",))
    batches = RowBatches(split, SMILES, data, 0, objectives=("mlm",))
    epochs = np.split(np.arange(2 * batches.rows_per_epoch), 2)
    spelled = [["".join(SMILES.tokens[n] for n in text) for text in _texts(batches.rows(rows))] for rows in epochs]
    assert spelled[0] != spelled[1]
    canonical = sorted(map(chemistry.CanonSmiles, texts))
    assert [sorted(map(chemistry.CanonSmiles, epoch)) for epoch in spelled] == [canonical] * 2


def test_randomised_smiles_keep_texts_if_no_spelling_fits():
    pytest.importorskip("rdkit")
    keys = hash64(derive_key(3), np.arange(4))
    assert spellings(["c1ccc", "CBr", "O=C(C)", "C1CC1"], keys, slack=0)[:2] == ["c1ccc", "C[UNK]"]
    short = {spellings(["CC(N)O"], hash64(derive_key(n), np.arange(1)), slack=0)[0] for n in range(40)}
    long = {spellings(["CC(N)O"], hash64(derive_key(n), np.arange(1)))[0] for n in range(40)}
    assert {len(one) for one in short} == {6} and max(map(len, long)) == 8
    with pytest.raises(ValueError, match="does not spell the molecule CCO; use a cased SMILES"):
        randomised_smiles.prepare(DNA)


def test_unsuitable_or_unknown_augmentation_is_refused():
    with pytest.raises(ValueError, match=r"lacks the reverse complement of its token 'L'"):
        prepare(make_symbols(*ALPHABETS["esm2"]))
    with pytest.raises(ValueError, match=r"'reverse_complemnt' is unknown; did you mean reverse_complement\?"):
        registry.choose(("reverse_complemnt",))
