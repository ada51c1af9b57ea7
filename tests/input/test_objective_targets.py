"""Arrays that objectives add to a batch: sentence order, the union of keys, and a plug-in objective."""

from __future__ import annotations

import importlib
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pair_corpora import FIRST_TOKEN, MemorySplit, Specials, random_documents
from scipy import stats

import bertjax.input.targets
from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches, batch_spec
from bertjax.input.packing import BatchArray
from bertjax.input.plan import build_plan
from bertjax.input.targets import registry
from bertjax.input.targets.target import Pairing, Target
from bertjax.input.training_data import open_training_data
from bertjax.storage.progress import no_progress

SPECIALS = Specials(vocab_size=10**6)
DOCUMENTS = random_documents(200, seed=4, sentences=6, tokens=12)
SPLIT = MemorySplit(DOCUMENTS, all_different=True)
DATA = DataConfig(sequence_length=64, max_predictions=10, keep_share=1.0, random_share=0.0)  # masks keep the tokens
ENCODER = ["input_ids", "token_type_ids", "sequence_ids"]
MLM = ["mlm_positions", "mlm_labels", "mlm_weights"]
PAIRS = ["cls_positions", "pair_labels", "pair_weights"]


def split_chunks(document: list[int], target: int) -> list[tuple[int, int]]:
    """Sentences [first, last) of each chunk, by create_instances_from_document of google-research/albert."""
    chunks, start, size = [], 0, 0
    for number, tokens in enumerate(document):
        size += tokens
        if size >= target or number == len(document) - 1:
            chunks.append((start, number + 1))
            start, size = number + 1, 0
    return chunks


@pytest.mark.parametrize("epoch", [0, 3])
def test_sentence_order_chunks_match_albert(epoch: int) -> None:
    """Each sentence is in one chunk; B is random if and only if a chunk is one sentence."""
    documents, sentences = SPLIT.document_offsets, SPLIT.sentence_offsets
    plan = build_plan(
        documents,
        sentences,
        max_tokens=61,
        short_sequence_probability=0,
        seed=5,
        epoch=epoch,
        random_b=False,
    )
    expected = sorted(
        (int(base) + first, int(base) + last)
        for base, document in zip(documents, DOCUMENTS, strict=False)
        for first, last in split_chunks(document, 61)
    )
    chunks = []
    for a, a_count, b, b_count, is_random in zip(*vars(plan).values(), strict=True):
        a, a_end = int(a), int(a) + int(a_count)
        if is_random:
            homes = np.searchsorted(documents, [a, b], side="right")
            assert homes[0] != homes[1] and a_count == 1
            chunks.append((a, a_end))
        else:
            assert b == a_end
            chunks.append((a, a_end + int(b_count)))
    assert sorted(chunks) == expected
    singles = sum(last - first == 1 for first, last in expected)
    assert 0 < singles == np.count_nonzero(plan.is_random) < len(expected)
    # All places between sentences are equally likely as the end of A.
    cuts = np.array(
        [int(n) for n, m, r in zip(plan.a_count, plan.b_count, plan.is_random, strict=True) if n + m == 4 and not r]
    )
    assert stats.chisquare(np.bincount(cuts, minlength=4)[1:]).pvalue > 0.01


def segments(batch: dict[str, np.ndarray], row: int) -> tuple[list[int], list[int]]:
    """The tokens of A and B, as positions in the split."""
    inside = batch["sequence_ids"][row] > 0
    first = batch["input_ids"][row][inside & (batch["token_type_ids"][row] == 0)][1:-1] - FIRST_TOKEN
    second = batch["input_ids"][row][batch["token_type_ids"][row] == 1][:-1] - FIRST_TOKEN
    return first.tolist(), second.tolist()


def test_sentence_order_swaps_half_of_the_pairs() -> None:
    batches = RowBatches(SPLIT, SPECIALS, DATA, 3, objectives=("mlm", "sop"))
    rows = batches.rows(np.arange(2 * batches.rows_per_epoch))
    edges = SPLIT.sentence_offsets[SPLIT.document_offsets]
    kinds = []
    for row in range(len(rows["input_ids"])):
        a, b = segments(rows, row)
        homes = np.searchsorted(edges, [a[0], b[0]], side="right")
        kind = "random" if homes[0] != homes[1] else "in order" if a[-1] < b[0] else "exchanged"
        assert rows["pair_labels"][row, 0] == (kind != "in order")
        if kind == "random":
            sentences = np.searchsorted(SPLIT.sentence_offsets, [a[0], a[-1]], side="right")
            assert sentences[0] == sentences[1], "B is random, but A is not a chunk of one sentence"
        kinds.append(kind)
    in_order, exchanged = kinds.count("in order"), kinds.count("exchanged")
    assert stats.binomtest(exchanged, in_order + exchanged).pvalue > 0.01
    assert 0 < kinds.count("random") < 0.3 * len(kinds)
    assert (rows["pair_weights"] == 1).all()
    again = RowBatches(SPLIT, SPECIALS, DATA, 3, objectives=("sop", "mlm")).rows(np.arange(40))
    assert all((again[key] == rows[key][:40]).all() for key in rows)


def test_packing_does_not_change_sentence_order_pairs() -> None:
    packed_data = replace(DATA, packing="pairs", pairs_per_row=4, sequence_length=64)
    plain, packed = (RowBatches(SPLIT, SPECIALS, data, 3, objectives=("mlm", "sop")) for data in (DATA, packed_data))
    alone = plain.rows(np.arange(plain.rows_per_epoch))
    together = packed.rows(np.arange(packed.rows_per_epoch))
    pairs = {
        tuple(ids[: n.sum()].tolist()): int(label)
        for ids, n, (label,) in zip(alone["input_ids"], alone["sequence_ids"], alone["pair_labels"], strict=True)
    }
    seen = 0
    for ids, numbers, labels, weights in zip(
        together["input_ids"], together["sequence_ids"], together["pair_labels"], together["pair_weights"], strict=True
    ):
        for slot in np.flatnonzero(weights):
            assert pairs[tuple(ids[numbers == slot + 1].tolist())] == labels[slot]
            seen += 1
    assert seen == len(alone["input_ids"])


@pytest.mark.parametrize(
    ("objectives", "keys"),
    [
        (("mlm",), ENCODER + MLM),
        (("nsp",), ENCODER + PAIRS),
        (("mlm", "nsp"), ENCODER + MLM + PAIRS),
        (("mlm", "sop"), ENCODER + MLM + PAIRS),
        (("sop", "mlm"), ENCODER + PAIRS + MLM),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_batch_has_the_arrays_of_its_objectives(objectives: tuple[str, ...], keys: list[str], packing: str) -> None:
    data = replace(DATA, packing=packing)
    batches = RowBatches(SPLIT, SPECIALS, data, 0, objectives=objectives)
    batch = batches.batch(0, 12)
    assert list(batch) == keys
    shapes = {key: (values.shape, values.dtype.type) for key, values in batch.items()}
    assert shapes == batches.spec(12) == batch_spec(data, 12, objectives)
    assert {key: shape for key, (shape, _) in shapes.items() if key in ENCODER} == dict.fromkeys(ENCODER, (12, 64))
    everything = RowBatches(SPLIT, SPECIALS, replace(data), 0).batch(0, 12)
    if "sop" not in objectives:
        assert all((batch[key] == everything[key]).all() for key in keys if "mlm" in objectives or key != "input_ids")


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        ((), r"training\.objectives=\(\): choose one or more of mlm, nsp, sop, .*each once"),
        (("mlm", "nps"), r"training\.objectives=\('mlm', 'nps'\): choose one or more of mlm, nsp, sop, .*each once"),
        (("mlm", "mlm"), r"choose one or more of mlm, nsp, sop, .*each once"),
        (("mlm", "nsp", "sop"), r"nsp and sop need different sentence pairs; leave one of them out"),
    ],
)
def test_invalid_objectives_are_refused(objectives: tuple[str, ...], message: str) -> None:
    for make in (
        lambda: RowBatches(SPLIT, SPECIALS, DATA, 0, objectives=objectives),
        lambda: batch_spec(DATA, 4, objectives),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_invalid_rows_are_refused_before_text_is_read() -> None:
    data = DataConfig(sources=("text:nowhere/*",), masking="word")
    with pytest.raises(ValueError, match=r"data\.masking='word' is unknown"):
        open_training_data([replace(data, masking="tokens"), data], no_progress)
    with pytest.raises(ValueError, match=r"training\.objectives=\('mml',\): choose"):
        open_training_data([replace(data, masking="tokens")], no_progress, ("mml",))


MADE_UP = '''
    """A made-up objective: the length of each sequence, which tokens are even, and the first three tokens."""

    import numpy as np

    from bertjax.input.packing import BatchArray


    class Lengths:
        pairing = None
        from_records = None

        def keys(self, data):
            slots = 3 * data.pair_slots
            return {
                "made_up_lengths": BatchArray("sequence", data.pair_slots, np.float32),
                "made_up_even": BatchArray("token", data.sequence_length, np.int32, filler=-1),
                "made_up_places": BatchArray("prediction", slots, np.int32, "made_up_weights", is_position=True),
                "made_up_weights": BatchArray("prediction", slots, np.float32, "made_up_weights"),
            }

        def prepare(self, data, vocabulary, split):
            def make(rows):
                ids, inside = rows.encoder["input_ids"], rows.encoder["sequence_ids"]
                return {
                    "made_up_lengths": inside.sum(axis=1, keepdims=True).astype(np.float32),
                    "made_up_even": np.where(inside > 0, ids % 2 == 0, -1).astype(np.int32),
                    "made_up_places": np.tile(np.arange(3, dtype=np.int32), (len(ids), 1)),
                    "made_up_weights": np.ones((len(ids), 3), np.float32),
                }

            return make


    TARGET = Lengths()
'''


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_objective_can_be_added_by_a_file_and_a_line(tmp_path: Path, monkeypatch, packing: str) -> None:
    (tmp_path / "made_up.py").write_text(textwrap.dedent(MADE_UP))
    monkeypatch.setattr(bertjax.input.targets, "__path__", [*bertjax.input.targets.__path__, str(tmp_path)])
    monkeypatch.delitem(importlib.sys.modules, "bertjax.input.targets.made_up", raising=False)
    target = importlib.import_module("bertjax.input.targets.made_up").TARGET
    monkeypatch.setitem(registry.TARGETS, "made_up", target)
    data = replace(DATA, packing=packing)
    batches = RowBatches(SPLIT, SPECIALS, data, 0, objectives=("made_up", "mlm", "nsp"))
    batch = batches.batch(1, 20)
    assert {key: (values.shape, values.dtype.type) for key, values in batch.items()} == batches.spec(20)
    usual = RowBatches(SPLIT, SPECIALS, data, 0).batch(1, 20)
    assert all((batch[key] == usual[key]).all() for key in usual)
    inside = batch["sequence_ids"] > 0
    assert (batch["made_up_even"] == np.where(inside, batch["input_ids"] % 2 == 0, -1)).all()
    for row, numbers in enumerate(batch["sequence_ids"]):
        sizes = np.bincount(numbers, minlength=data.pair_slots + 1)[1:]
        assert batch["made_up_lengths"][row].tolist() == sizes.tolist()
        begins = [int(np.flatnonzero(numbers == n)[0]) for n in range(1, numbers.max() + 1)]
        used = batch["made_up_weights"][row] > 0
        assert batch["made_up_places"][row][used].tolist() == [begin + n for begin in begins for n in range(3)]
        assert not batch["made_up_places"][row][~used].any()


class Ranks(Target):
    """Adds the arrays that a test gives."""

    def __init__(self, **arrays) -> None:
        self._arrays = arrays

    def keys(self, data):
        return {"ranks": BatchArray("prediction", 10, np.float32, "mlm_weights")}

    def prepare(self, data, vocabulary, split):
        return lambda rows: {name: make(rows.arrays["mlm_weights"]) for name, make in self._arrays.items()}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, r"target ranks: `prepare` makes no 'ranks', which `keys` declares; return it, or remove it"),
        ({"ranks": np.float64}, r"'ranks' is float64 \[4, 10\], but `keys` declares float32 \[4, 10\]; convert it"),
        ({"ranks": lambda weights: weights[:, :3]}, r"'ranks' is float32 \[4, 3\], .* declares float32 \[4, 10\]"),
    ],
)
def test_target_that_differs_from_its_keys_is_refused(monkeypatch, arrays: dict, message: str) -> None:
    monkeypatch.setitem(registry.TARGETS, "ranks", Ranks(ranks=np.copy))
    batch = RowBatches(SPLIT, SPECIALS, DATA, 0, objectives=("mlm", "ranks")).batch(0, 4)
    assert (batch["ranks"] == batch["mlm_weights"]).all()
    monkeypatch.setitem(registry.TARGETS, "ranks", Ranks(**arrays))
    with pytest.raises(ValueError, match=message):
        RowBatches(SPLIT, SPECIALS, DATA, 0, objectives=("mlm", "ranks")).batch(0, 4)


def test_objectives_with_equal_keys_are_refused(monkeypatch) -> None:
    monkeypatch.setitem(registry.TARGETS, "again", registry.TARGETS["mlm"])
    with pytest.raises(ValueError, match=r"again adds mlm_labels, mlm_positions, mlm_weights, which another objective"):
        batch_spec(DATA, 4, ("mlm", "again"))


def test_pairing_defaults_to_berts() -> None:
    assert registry.choose_pairing(("mlm",)) == registry.choose_pairing(("mlm", "nsp")) == Pairing()
    assert registry.choose_pairing(("sop", "mlm")) == Pairing(
        random_b=False, exchanges=True, names=("in order", "out of order")
    )
