"""Counts, lengths, words and rows of a store, compared with plain loops over its documents."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from stored_documents import write_store

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.layout import Template
from bertjax.inspect.corpus_figures import Lengths, count_store, measure_lengths, measure_words
from bertjax.inspect.row_figures import SAMPLE_ROWS, Piece, RowKind, join_pieces, measure_rows, readable_rows
from bertjax.inspect.stretches import stretches
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

WORDS = [f"{a}{b}{c}" for a in "bdfgklmé" for b in "aeiou" for c in "nrst"]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, "the", "##ing", "##ed", ".", "[", "unused", *WORDS], TextRules(True, True))
DATA = DataConfig(sequence_length=48, max_predictions=8)


def random_documents(number, seed):
    """Documents whose sentences begin with a whole word, with Zipf-distributed tokens."""
    draw = np.random.default_rng(seed)
    usual = [n for n in range(TOKENIZER.vocab_size - 20) if n not in (0, 2, 3, 4) and TOKENIZER.tokens[n] != "unused"]
    starts = [n for n in usual if not TOKENIZER.is_continuation[n]]
    weights = 1 / np.arange(1, len(usual) + 1)
    return [
        [
            [int(draw.choice(starts)), *draw.choice(usual, draw.integers(0, 20), p=weights / weights.sum()).tolist()]
            for _ in range(draw.integers(1, 12))
        ]
        for _ in range(number)
    ]


TRAIN, HELD_OUT = random_documents(60, 0), random_documents(7, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    described = [
        {"kind": "text", "files": [["a.txt", ""], ["b.txt", ""]]},
        {"kind": "jsonl", "files": [["c.jsonl", ""]]},
    ]
    homes = {"train": [0, 0, 0, 1, 1, 1], "held_out": [1]}
    return TokenStore.open(
        write_store(
            tmp_path_factory.mktemp("figures") / "store", {"train": TRAIN, "held_out": HELD_OUT}, TOKENIZER,
            documents_per_shard=10, provenance={"shard_sources": homes, "sources": described},
        )
    )  # fmt: skip


def flat(documents):
    return [token for document in documents for sentence in document for token in sentence]


def brute_amount(documents):
    tokens = flat(documents)
    spelled = sum(len(TOKENIZER.tokens[t].removeprefix("##").encode()) for t in tokens if t != TOKENIZER.unk_id)
    return (len(documents), sum(map(len, documents)), len(tokens), spelled, tokens.count(TOKENIZER.unk_id))


def test_amounts_are_counted_by_split_and_source(store):
    read = []
    amounts, _ = count_store(store, TOKENIZER, read.append)
    result = {
        (a.split, a.source): (a.documents, a.sentences, a.tokens, a.spelled_bytes, a.unknown) for a in amounts
    }  # fmt: skip
    first, second = "text: a.txt and 1 more", "jsonl: c.jsonl"
    assert result == {
        ("train", ""): brute_amount(TRAIN),
        ("train", first): brute_amount(TRAIN[:30]),
        ("train", second): brute_amount(TRAIN[30:]),
        ("held_out", ""): brute_amount(HELD_OUT),
        ("held_out", first): (0,) * 5,
        ("held_out", second): brute_amount(HELD_OUT),
    }
    assert sum(read) == len(flat(TRAIN)) + len(flat(HELD_OUT))


def test_store_without_sources_has_split_amounts(tmp_path):
    store = TokenStore.open(write_store(tmp_path / "store", {"train": TRAIN}, TOKENIZER, provenance={}))
    amounts, counts = count_store(store, TOKENIZER, lambda more: None)
    assert [(a.split, a.source, a.tokens) for a in amounts] == [("train", "", len(flat(TRAIN))), ("held_out", "", 0)]
    assert counts["held_out"].by_id.sum() == 0
    assert [one.mean for one in measure_lengths(store.split("held_out"))] == [0, 0, 0]


def test_sentence_begins_a_word(tmp_path):
    """In byte-level BPE without `prefix_space`, the first piece of a text is not marked as a word."""
    the, ing = (TOKENIZER.tokens.index(token) for token in ("the", "##ing"))
    documents = [[[ing, the, ing], [ing, ing]], [[ing]]]
    store = TokenStore.open(write_store(tmp_path / "store", {"train": documents}, TOKENIZER, provenance={}))
    words = measure_words(count_store(store, TOKENIZER, lambda more: None)[1]["train"], TOKENIZER, None, 4)
    assert (words.words, words.continuations, words.split) == (4, 2, 2)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 22])
def test_lengths_match_the_documents(store, monkeypatch, at_once):
    monkeypatch.setattr("bertjax.inspect.corpus_figures.OFFSETS_AT_ONCE", at_once)
    expected = [
        [len(s) for d in TRAIN for s in d],
        [len(d) for d in TRAIN],
        [sum(map(len, d)) for d in TRAIN],
    ]  # fmt: skip
    for lengths, values in zip(measure_lengths(store.split("train")), expected, strict=True):
        assert lengths.counts.tolist() == [values.count(n) for n in range(max(values) + 1)]
        assert lengths.mean == pytest.approx(np.mean(values))
        for share in (0.5, 0.9, 0.99, 1.0):
            assert lengths.quantile(share) == np.quantile(values, share, method="inverted_cdf")


@pytest.mark.parametrize("per_octave", [1, 2])
@pytest.mark.parametrize("longest", [1, 2, 3, 4, 255, 256, 1000])
def test_bins_hold_every_length_once(per_octave, longest):
    counts = np.arange(longest + 1)
    edges, binned = Lengths("x", counts).binned(per_octave)
    assert edges[0] == 1 and edges[-1] > longest and (np.diff(edges) > 0).all()
    assert binned.tolist() == [sum(counts[a:b]) for a, b in itertools.pairwise(edges)]
    if per_octave == 1:
        assert edges.tolist() == [2**n for n in range(len(edges))]


def test_words_match_a_plain_loop(store):
    _, counts = count_store(store, TOKENIZER, lambda more: None)
    words = measure_words(counts["train"], TOKENIZER, None, 4)
    continues = [TOKENIZER.tokens[t].startswith("##") for t in flat(TRAIN)]
    assert (words.tokens, words.continuations, words.words) == (
        len(continues), sum(continues), len(continues) - sum(continues)
    )  # fmt: skip
    assert words.split == sum(b and not a for a, b in itertools.pairwise(continues)) > 0
    frequency = Counter(flat(TRAIN))
    assert words.unknown == frequency[TOKENIZER.unk_id] > 0
    assert (words.unknown_are, words.added) == ("words", None)
    added = TOKENIZER.tokens[9:12]
    assert measure_words(counts["train"], TOKENIZER, added, 4).added == sum(frequency[n] for n in range(9, 12)) > 0
    usable = [n for n, token in enumerate(TOKENIZER.tokens) if token not in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")]
    assert words.never == sum(frequency[n] == 0 for n in usable) >= 21
    assert words.rare == sum(0 < count < 10 for count in frequency.values()) > 0
    assert [count for _, count in words.most_frequent] == [count for _, count in frequency.most_common(4)]
    assert dict(words.most_frequent).keys() <= set(TOKENIZER.tokens)


@pytest.mark.parametrize("tokens", [1, 50, 1 << 20])
def test_stretches_yield_chosen_documents_in_order(store, tokens):
    chosen = np.array([0, 3, 4, 29, 30, 31, 59])
    read = list(stretches(store.split("train"), chosen, tokens))
    assert np.concatenate([s.documents for s in read]).tolist() == chosen.tolist()
    assert np.concatenate([s.ids for s in read]).tolist() == flat([TRAIN[n] for n in chosen])
    assert np.concatenate([s.lengths for s in read]).tolist() == [len(flat([TRAIN[n]])) for n in chosen]
    assert (len(read) == 1) == (tokens == 1 << 20)
    assert all(s.lengths[:-1].sum() < tokens for s in read)


def test_row_figures_match_a_plain_loop(store):
    figures = measure_rows(store.split("train"), TOKENIZER, RowKind("", DATA, 5))
    for rows, packing in ((figures.single, "none"), (figures.packed, "pairs")):
        batches = RowBatches(store.split("train"), TOKENIZER, replace(DATA, packing=packing), 5)
        assert rows.per_epoch == rows.sampled == batches.rows_per_epoch < SAMPLE_ROWS
        batch = batches.rows(np.arange(rows.per_epoch))
        cells = [cell for row in batch["input_ids"].tolist() for cell in row]
        real = [cell for cell in cells if cell != TOKENIZER.pad_id]
        assert rows.padding == pytest.approx(1 - len(real) / len(cells))
        assert rows.mask_rate == pytest.approx(batch["mlm_weights"].sum() / len(real))
        labels = batch["pair_labels"][batch["pair_weights"] > 0].tolist()
        assert rows.label_0 == pytest.approx(labels.count(0) / len(labels))
        assert rows.pairs_per_row == pytest.approx(len(labels) / rows.per_epoch)
    assert figures.packed.padding < figures.single.padding
    assert figures.single.pairs_per_row == 1 < figures.packed.pairs_per_row
    assert figures.packed.pairs == figures.single.pairs


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_readable_rows_show_text_and_masked_tokens(store, packing):
    data = replace(DATA, packing=packing)
    batches = RowBatches(store.split("train"), TOKENIZER, data, 3)
    batch = batches.rows(np.arange(4))
    pairs = readable_rows(store.split("train"), TOKENIZER, RowKind("", data, 3), 4)
    assert len(pairs) == np.count_nonzero(batch["pair_weights"])
    shown = [p.token for pair in pairs for p in (*pair.a, *pair.b)]
    cells = [TOKENIZER.tokens[n] for row in batch["input_ids"] for n in row]
    assert shown == [token for token in cells if token not in ("[CLS]", "[SEP]", "[PAD]")]
    hidden = [p.original for pair in pairs for p in (*pair.a, *pair.b) if p.original is not None]
    assert hidden == [TOKENIZER.tokens[n] for n in batch["mlm_labels"][batch["mlm_weights"] > 0]]
    labels = batch["pair_labels"][batch["pair_weights"] > 0]
    assert [pair.label for pair in pairs] == [("IsNext", "NotNext")[n] for n in labels]
    texts = {" ".join(TOKENIZER.tokens[t] for t in flat([d])) for d in TRAIN}
    for pair in pairs:
        for segment in (pair.a, pair.b):
            text = " ".join(p.original or p.token for p in segment)
            assert any(text in whole for whole in texts)


def test_join_pieces_omits_spaces_in_words():
    pieces = (Piece("play"), Piece("##ing"), Piece("[MASK]", "the"), Piece("[MASK]", "##ed"), Piece("ban", "ban"))
    assert join_pieces(pieces) == "playing [MASK:the][MASK:##ed] [ban:ban]"


def test_next_token_rows_have_nothing_masked(store):
    kind = RowKind("", replace(DATA, predict="next"), 0)
    pieces = [p for pair in readable_rows(store.split("train"), TOKENIZER, kind, 3) for p in (*pair.a, *pair.b)]
    assert pieces and not any(piece.original for piece in pieces)


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_sentence_order_pairs_match_the_run(store, packing):
    data, objectives = replace(DATA, packing=packing), ("mlm", "sop")
    split = store.split("train")
    batch = RowBatches(split, TOKENIZER, data, 3, objectives=objectives).rows(np.arange(6))
    kind = RowKind("", data, 3, objectives)
    pairs = readable_rows(split, TOKENIZER, kind, 6)
    labels = batch["pair_labels"][batch["pair_weights"] > 0]
    assert [pair.label for pair in pairs] == [("in order", "out of order")[n] for n in labels]
    shown = [p.token for pair in pairs for p in (*pair.a, *pair.b)]
    cells = [TOKENIZER.tokens[n] for row in batch["input_ids"] for n in row]
    assert shown == [token for token in cells if token not in ("[CLS]", "[SEP]", "[PAD]")]
    whole = RowBatches(split, TOKENIZER, replace(DATA, packing="none"), 3, objectives=objectives)
    result = measure_rows(split, TOKENIZER, kind).single
    assert result.label_0 == pytest.approx((whole.rows(np.arange(result.per_epoch))["pair_labels"] == 0).mean())


@pytest.mark.parametrize("rows", ["pairs", "doc_sentences", "full_sentences", "documents"])
def test_rows_of_another_template_without_pairs(store, rows):
    template = Template(separators=2, token_types=False)
    data = replace(DATA, rows=rows, mask_special=True, mask_probability=0.5, max_predictions=24)
    kind = RowKind("", data, 3, ("mlm",), template)
    batch = kind.batches(store.split("train"), TOKENIZER).rows(np.arange(6))
    pairs = readable_rows(store.split("train"), TOKENIZER, kind, 6)
    result = measure_rows(store.split("train"), TOKENIZER, kind).single
    assert result.label_0 is None and result.masked
    used = batch["mlm_weights"] > 0
    original = batch["input_ids"].copy()
    original[np.nonzero(used)[0], batch["mlm_positions"][used]] = batch["mlm_labels"][used]
    for pair, row, ids in zip(pairs, batch["sequence_ids"], original, strict=True):
        a, b = ([TOKENIZER.tokens.index(p.original or p.token) for p in part] for part in (pair.a, pair.b))
        sep = [TOKENIZER.sep_id]
        assert ids[row > 0].tolist() == [TOKENIZER.cls_id, *a, *(sep * 2 + b if rows == "pairs" else []), *sep]
        assert bool(b) == (rows == "pairs") == (pair.label == "a pair")
