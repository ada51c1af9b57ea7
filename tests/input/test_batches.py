"""Rows are well formed, and the stream of batches does not depend on hosts, restarts or batch size."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import FIRST_TOKEN, MemorySplit, Specials, random_documents
from scipy import stats
from stored_documents import write_store

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

SPECIALS = Specials()
DATA = DataConfig(sequence_length=32, max_predictions=6)
PACKED = replace(DATA, packing="pairs", pairs_per_row=3)
each_packing = pytest.mark.parametrize("data", [DATA, PACKED], ids=["plain", "packed"])
BATCH_SIZE = 8


def small_batches(seed: int = 0, data: DataConfig = DATA, documents: int = 24) -> RowBatches:
    return RowBatches(MemorySplit(random_documents(documents, seed=2, sentences=6, tokens=9)), SPECIALS, data, seed)


def digest(batches: list[dict[str, np.ndarray]]) -> str:
    """SHA-256 over keys, dtypes, shapes and bytes of a stream of batches."""
    sha = hashlib.sha256()
    for batch in batches:
        for key, values in batch.items():
            sha.update(f"{key} {values.dtype} {values.shape}".encode() + np.ascontiguousarray(values).tobytes())
    return sha.hexdigest()


def two_epochs(batches: RowBatches) -> int:
    """Steps in two epochs, rounded up."""
    return -(-2 * batches.rows_per_epoch // BATCH_SIZE)


def check_row(row: dict[str, np.ndarray], split: MemorySplit, data: DataConfig) -> None:
    """Check all properties of a row from a split whose tokens are all different."""
    ids, types, inside = row["input_ids"].tolist(), row["token_type_ids"].tolist(), row["sequence_ids"].tolist()
    total = sum(inside)
    assert inside == [1] * total + [0] * (data.sequence_length - total)
    assert ids[total:] == [SPECIALS.pad_id] * (data.sequence_length - total)

    used = int(row["mlm_weights"].sum())
    assert row["mlm_weights"].tolist() == [1.0] * used + [0.0] * (data.max_predictions - used)
    positions, labels = row["mlm_positions"].tolist(), row["mlm_labels"].tolist()
    assert positions[used:] == labels[used:] == [0] * (data.max_predictions - used)
    assert positions[:used] == sorted(set(positions[:used]))
    budget = min(data.max_predictions, max(1, round(total * data.mask_probability)), total - 3)
    assert used <= budget if data.masking == "words" else used == budget
    original = list(ids)
    for position, label in zip(positions[:used], labels[:used], strict=True):
        original[position] = label
        assert 0 <= ids[position] < split.vocab_size

    first_sep = types.index(1) - 1
    assert types == [0] * (first_sep + 1) + [1] * (total - first_sep - 1) + [0] * (data.sequence_length - total)
    assert (original[0], original[first_sep], original[total - 1]) == (
        SPECIALS.cls_id,
        SPECIALS.sep_id,
        SPECIALS.sep_id,
    )
    a, b = original[1:first_sep], original[first_sep + 1 : total - 1]
    assert a and b and min(a + b) >= FIRST_TOKEN
    assert a == list(range(a[0], a[0] + len(a))) and b == list(range(b[0], b[0] + len(b)))  # labels are the text

    ends = split.sentence_offsets[split.document_offsets[1:]] + FIRST_TOKEN
    homes = np.searchsorted(ends, [a[0], a[-1], b[0], b[-1]], side="right").tolist()
    assert homes[0] == homes[1] and homes[2] == homes[3]
    is_random = homes[0] != homes[2]
    assert row["pair_labels"].tolist() == [int(is_random)]
    assert is_random or a[-1] < b[0]
    assert total == data.sequence_length or is_random or a[-1] + 1 == b[0]  # nothing was cut between A and B
    assert row["cls_positions"].tolist() == [0] and row["pair_weights"].tolist() == [1.0]


@settings(max_examples=60, derandomize=True)
@given(
    documents=st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=12), min_size=2, max_size=8),
    length=st.integers(8, 80),
    slots=st.integers(1, 20),
    probability=st.sampled_from([0.0, 0.15, 0.5, 0.99]),
    whole_words=st.booleans(),
    seed=st.integers(0, 2**63),
    first=st.integers(0, 10**6),
)
def test_every_row_is_well_formed(documents, length, slots, probability, whole_words, seed, first) -> None:
    tokens = sum(map(sum, documents))
    split = MemorySplit(documents, vocab_size=FIRST_TOKEN + tokens, all_different=True)
    data = DataConfig(
        sequence_length=length,
        max_predictions=slots,
        mask_probability=probability,
        short_sequence_probability=0.3,
        masking="words" if whole_words else "tokens",
    )
    batches = RowBatches(split, replace(SPECIALS, vocab_size=split.vocab_size), data, seed)
    batch = batches.rows(first + np.arange(7))
    assert {key: (values.shape, values.dtype.type) for key, values in batch.items()} == batches.spec(7)
    assert list(batch) == list(batches.spec(7))
    for n in range(7):
        check_row({key: values[n] for key, values in batch.items()}, split, data)


@each_packing
@pytest.mark.parametrize("hosts", [2, 8])
def test_hosts_make_slices_of_the_same_batches(hosts: int, data: DataConfig) -> None:
    whole = [small_batches(data=data).batch(step, BATCH_SIZE) for step in range(two_epochs(small_batches(data=data)))]
    share = BATCH_SIZE // hosts
    per_host = [small_batches(data=data) for _ in range(hosts)]
    joined = []
    for step in range(len(whole)):
        parts = [
            batches.batch(step, BATCH_SIZE, slice(host * share, (host + 1) * share))
            for host, batches in enumerate(per_host)
        ]
        joined.append({key: np.concatenate([part[key] for part in parts]) for key in parts[0]})
    assert digest(joined) == digest(whole)


@each_packing
def test_batch_makes_any_selection_of_rows(data: DataConfig) -> None:
    batches = small_batches(data=data)
    whole, rows = batches.batch(3, BATCH_SIZE), np.array([6, 0, 3])
    picked = batches.batch(3, BATCH_SIZE, rows)
    assert all((picked[key] == whole[key][rows]).all() for key in whole)
    strided = batches.batch(3, BATCH_SIZE, slice(1, None, 2))
    assert all((strided[key] == whole[key][1::2]).all() for key in whole)
    nothing = batches.batch(3, BATCH_SIZE, np.array([], int))
    assert {key: (v.shape, v.dtype.type) for key, v in nothing.items()} == batches.spec(0)


@each_packing
def test_restart_at_every_step_of_two_epochs(data: DataConfig) -> None:
    running = small_batches(data=data)
    stream = [running.batch(step, BATCH_SIZE) for step in range(two_epochs(running))]
    for start in range(len(stream)):
        restarted = small_batches(data=data)
        rest = [restarted.batch(step, BATCH_SIZE) for step in range(start, len(stream))]
        assert digest(rest) == digest(stream[start:])


def test_stream_matches_recorded_digest() -> None:
    """These bytes must not change, because a run that is resumed after an upgrade needs the same batches."""
    documents = [[(7 * i + 3 * j) % 23 + 1 for j in range(i % 9 + 1)] for i in range(24)]
    batches = RowBatches(MemorySplit(documents, all_different=True), SPECIALS, DATA, seed=3)
    stream = digest([batches.batch(step, BATCH_SIZE) for step in range(two_epochs(batches))])
    assert stream == "c2dec2c8fd8361d8fffa82458a128b142a24029d1204f8501cddd2c27793f0c0"


@each_packing
def test_batch_size_does_not_change_rows(data: DataConfig) -> None:
    batches = small_batches(data=data)
    few, many = batches.batch(0, 24), [batches.batch(step, 4) for step in range(6)]
    assert all((few[key] == np.concatenate([b[key] for b in many])).all() for key in few)


def test_epochs_seeds_and_masks_differ() -> None:
    batches, other = small_batches(), small_batches(seed=1)
    first, second = (batches.rows(epoch * batches.rows_per_epoch + np.arange(40)) for epoch in (0, 1))
    assert digest([first]) != digest([second])
    assert digest([first]) != digest([other.rows(np.arange(40))])


def sources(batches: RowBatches, epoch: int) -> list[tuple[int, ...]]:
    """The first sentences and sentence counts of each row's pair in an epoch."""
    numbers = epoch * batches.rows_per_epoch + np.arange(batches.rows_per_epoch)
    pairs = batches.pairs(numbers)
    return list(map(tuple, np.concatenate([pairs.first, pairs.count], axis=1).tolist()))


def test_epochs_have_equally_many_rows() -> None:
    """The first epoch is its plan, shuffled. A longer plan is cut; a shorter one starts over, with other masks."""
    batches = small_batches()
    sizes = [len(batches._epochs.get(epoch)) for epoch in range(30)]
    assert batches.rows_per_epoch == sizes[0]
    assert min(sizes) < sizes[0] < max(sizes)
    for epoch, size in enumerate(sizes):
        placed = sources(batches, epoch)
        assert len(placed) == sizes[0]
        assert len(set(placed)) == min(size, sizes[0])
        assert placed != sorted(placed)
        keys = batches.pairs(epoch * sizes[0] + np.arange(sizes[0])).keys
        assert len(set(keys.tolist())) == sizes[0]


def test_every_epoch_round_and_seed_has_its_own_order() -> None:
    batches, other = small_batches(), small_batches(seed=1)
    content = batches._epochs.get(0)
    rows = np.arange(len(content))
    drawn = [(batches, epoch, number) for epoch in range(3) for number in range(2)] + [(other, 0, 0), (other, 0, 1)]
    orders = np.array([b._round_pairs(content, *which, rows, rows).first[:, 0] for b, *which in drawn])
    assert (np.sort(orders, axis=1) == np.sort(content.plan.a_start)).all()
    assert len(np.unique(orders, axis=0)) == 8


@each_packing
def test_row_order_has_no_serial_correlation(data: DataConfig) -> None:
    """A row's place in the corpus is independent of the next rows' places and of the step."""
    batches = small_batches(data=data, documents=3000)
    pairs = batches.pairs(np.arange(2 * batches.rows_per_epoch))
    first_of_row = pairs.first[np.unique(pairs.row, return_index=True)[1], 0]
    for epoch in np.split(first_of_row, 2):
        place = stats.rankdata(epoch)
        place = (place - place.mean()) / place.std()
        n = len(place)
        correlations = np.array([(place[lag:] * place[:-lag]).sum() / n for lag in range(1, 41)])
        ljung_box = n * (n + 2) * (correlations**2 / (n - np.arange(1, 41))).sum()
        assert n > 2000 and stats.chi2.sf(ljung_box, 40) > 0.001
        assert abs(stats.spearmanr(np.arange(n), place).statistic) < 4 / np.sqrt(n)
        is_next = epoch[1:] > epoch[:-1]
        assert abs(is_next.mean() - 0.5) < 4 * np.sqrt(1 / 12 / n)  # ascents of a random order


@each_packing
def test_batch_may_span_many_epochs(data: DataConfig) -> None:
    batches = small_batches(data=data, documents=2)
    size = 5 * batches.rows_per_epoch + 3
    together = batches.batch(1, size)
    one_by_one = [batches.rows(np.array([number])) for number in range(size, 2 * size)]
    assert all((together[key] == np.concatenate([row[key] for row in one_by_one])).all() for key in together)


def test_random_access_builds_only_the_plans_it_needs() -> None:
    """A step far ahead builds the plans of its own epochs, not of all earlier ones."""
    batches = small_batches(documents=400)
    step, size = 10_000_000, 256
    batches.batch(step, size)
    first, last = (row // batches.rows_per_epoch for row in (step * size, (step + 1) * size - 1))
    built = set(batches._epochs._cache._plans) - {0}  # epoch 0 determines the number of rows in an epoch
    assert first > 1000 and set(range(first, last + 1)) <= built <= set(range(first, last + 2))


def test_next_plan_is_built_in_the_background() -> None:
    batches = small_batches(documents=200)
    batches.rows(np.array([0]))
    assert list(batches._epochs._cache._plans) == [0]
    batches.rows(np.array([batches.rows_per_epoch * 3 // 4]))
    assert list(batches._epochs._cache._plans) == [0, 1]


@pytest.mark.parametrize("documents", [[], [[3, 4]]])
def test_too_few_documents_are_refused(documents: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=rf"{len(documents)} document\(s\).*at least 2.*data\.held_out=0\.01"):
        RowBatches(MemorySplit(documents), SPECIALS, DATA, 0)


def test_too_short_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.sequence_length=4 is too short for a pair; use 5 or more"):
        small_batches(data=DataConfig(sequence_length=4))


def test_row_with_more_slots_than_tokens_matches_spec() -> None:
    data = DataConfig(sequence_length=16, max_predictions=20)
    batches = RowBatches(MemorySplit([[3] * 6] * 9), Specials(), data, 0)
    batch = batches.batch(0, 4)
    assert {name: (x.shape, x.dtype.type) for name, x in batch.items()} == batches.spec(4)
    assert (batch["mlm_weights"][:, 16:] == 0).all() and batch["mlm_weights"].any()


def test_bad_batch_arguments_are_refused() -> None:
    batches = small_batches()
    with pytest.raises(ValueError, match=r"step=-1"):
        batches.batch(-1, 8)
    with pytest.raises(ValueError, match=r"global_batch_size=0"):
        batches.batch(0, 0)
    with pytest.raises(ValueError, match=r"rows=\[0 8\] are outside the global batch of 8 rows"):
        batches.batch(0, 8, np.array([0, 8]))


@pytest.mark.parametrize("documents_per_shard", [None, 4])
def test_token_store_gives_the_batches_of_text_in_memory(tmp_path, documents_per_shard: int | None) -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [f"##w{n}" if n % 3 == 0 else f"w{n}" for n in range(5, SPECIALS.vocab_size)]
    wordpiece = WordPiece(tokens, TextRules(True, True))
    lengths = random_documents(9, seed=2, sentences=6, tokens=9)
    memory = MemorySplit(lengths)
    text, edges = memory.flat.tolist(), memory.sentence_offsets.tolist()
    sentences = iter(text[a:b] for a, b in pairwise(edges))
    documents = [[next(sentences) for _ in document] for document in lengths]
    store = write_store(tmp_path / "store", {"train": documents}, wordpiece, documents_per_shard=documents_per_shard)
    data = replace(DATA, masking="words")
    stored = RowBatches(TokenStore.open(store).split("train"), wordpiece, data, 0)
    in_memory = RowBatches(memory, SPECIALS, data, 0)
    steps = range(two_epochs(in_memory))
    expected = digest([in_memory.batch(n, BATCH_SIZE) for n in steps])
    assert digest([stored.batch(n, BATCH_SIZE) for n in steps]) == expected
    with pytest.raises(ValueError, match=r"0 document\(s\)"):
        RowBatches(TokenStore.open(store).split("held_out"), wordpiece, data, 0)


@pytest.mark.run
def test_batches_import_neither_jax_nor_tensorflow() -> None:
    code = (
        "import sys, bertjax.input.batches, bertjax.input.feed;"
        "print(sorted({'jax', 'tensorflow', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")
