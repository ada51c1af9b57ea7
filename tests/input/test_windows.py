"""Text of several windows: each row once per epoch, in an order that does not depend on hosts, threads or restarts."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from pair_corpora import random_documents
from scipy import stats
from stored_documents import write_store

from bertjax.config import DataConfig
from bertjax.input import epochs
from bertjax.input.batches import RowBatches
from bertjax.input.feed import open_feed
from bertjax.input.lanes import LaneBatches
from bertjax.input.provenance import origins
from bertjax.input.training_data import StoredText
from bertjax.input.windows import WHOLE_BATCH, Lane
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

WINDOW, SEED, BATCH = 4_000, 5, 16
TOKENIZER = WordPiece(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(40_000))], TextRules(True, True)
)
SENTENCES = DataConfig(sequence_length=64, rows="doc_sentences", packing="pairs", pairs_per_row=4, sources=("a", "b"))
LONG = replace(SENTENCES, sequence_length=512, max_predictions=100)  # no sentence is cut
PAIRS = DataConfig(sequence_length=48, max_predictions=8, sources=("a", "b"))


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> SplitView:
    """About 23,000 tokens, all different, of two sources; the first has three quarters of the documents."""
    token = iter(range(5, 40_000))
    documents = [
        [[next(token) for _ in range(length)] for length in document]
        for document in random_documents(160, seed=2, sentences=10, tokens=12)
    ]
    about = {"shard_sources": {"train": [0, 0, 0, 1]}, "sources": ["a", "b"]}
    path = tmp_path_factory.mktemp("windows") / "store"
    write_store(path, {"train": documents}, TOKENIZER, documents_per_shard=40, provenance=about)
    return TokenStore.open(path).split("train")


def make_batches(
    split: SplitView, data: DataConfig, folder: Path | None = None, seed: int = SEED, lane: Lane = WHOLE_BATCH
) -> RowBatches:
    objectives = ("mlm", "nsp") if data.rows == "pairs" else ("mlm",)
    return RowBatches(split, TOKENIZER, data, seed, folder, objectives=objectives, window_tokens=WINDOW, lane=lane)


def epoch_rows(batches: RowBatches, epoch: int) -> np.ndarray:
    """The row numbers of an epoch."""
    count = batches._epochs._windows.count
    rows = [batches._epochs.window_rows(window) for window in range(count * (epoch + 1))]
    return np.arange(sum(rows[:-count]), sum(rows)) if epoch else np.arange(sum(rows))


def row_texts(batches: RowBatches, numbers: np.ndarray) -> list[list[int]]:
    """The text in each row, before masking; each token occurs once in the corpus."""
    batch = batches.rows(numbers)
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["mlm_weights"])
    ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    return [row[row >= 5].tolist() for row in ids]


def test_every_epoch_has_each_sentence_once(split: SplitView) -> None:
    batches = make_batches(split, LONG)
    assert batches._epochs._windows.count == 6
    orders = []
    for epoch in range(2):
        rows = row_texts(batches, epoch_rows(batches, epoch))
        assert sorted(token for row in rows for token in row) == list(range(5, 5 + split.num_tokens))
        orders.append(rows)
    assert orders[0] != orders[1] and sorted(map(len, orders[0])) != sorted(map(len, orders[1]))
    assert batches.rows_per_epoch == pytest.approx(len(orders[0]), rel=0.1)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.05, 0.95), (1.0, 0.0)])
def test_mixture_estimates_its_rows_per_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: tuple[float, ...]
) -> None:
    """For a large source of short documents, and a small one whose documents fill rows and are read repeatedly."""
    monkeypatch.setattr(epochs, "SAMPLE_TOKENS", 2_000)
    documents = [*([[7] * 10] for _ in range(3_000)), *([[8] * 10] * 50 for _ in range(6))]
    about = {"shard_sources": {"train": [*[0] * 30, 1]}, "sources": ["a", "b"]}
    write_store(tmp_path / "s", {"train": documents}, TOKENIZER, documents_per_shard=100, provenance=about)
    batches = make_batches(
        TokenStore.open(tmp_path / "s").split("train"), replace(SENTENCES, packing="none", weights=weights)
    )
    rows = len(epoch_rows(batches, 0))
    assert batches.rows_per_epoch == pytest.approx(rows, rel=0.3)
    assert batches.estimated_rows == pytest.approx(rows, rel=0.1)


@pytest.mark.parametrize("data", [SENTENCES, PAIRS, replace(PAIRS, weights=(1.0, 3.0))])
def test_hosts_threads_and_restarts_do_not_change_batches(split: SplitView, tmp_path: Path, data: DataConfig) -> None:
    steps = range(2 * (len(epoch_rows(make_batches(split, data), 0)) // BATCH))
    whole = [make_batches(split, data).batch(step, BATCH) for step in steps[::9]]
    stored = make_batches(split, data, tmp_path)
    again = [stored.batch(step, BATCH) for step in reversed(steps[::9])][::-1]
    for number, step in enumerate(steps[::9]):
        halves = [make_batches(split, data, tmp_path).batch(step, BATCH, half) for half in (slice(0, 8), slice(8, 16))]
        for key, values in whole[number].items():
            assert (values == again[number][key]).all()
            assert (values == np.concatenate([half[key] for half in halves])).all()
    with open_feed(
        make_batches(split, data), start_step=3, global_batch_size=BATCH, threads=3, engine="threads"
    ) as feed:
        for step in range(3, steps.stop):
            batch = next(feed)
            if step % 9 == 0:
                assert all((values == whole[step // 9][key]).all() for key, values in batch.items())


def test_resumed_run_plans_only_its_window(split: SplitView, tmp_path: Path) -> None:
    first = make_batches(split, SENTENCES, tmp_path)
    rows = epoch_rows(first, 0)
    first.rows(rows)
    resumed = make_batches(split, SENTENCES, tmp_path)
    resumed.rows(rows[len(rows) // 2 :][:1])
    planned = min(resumed._epochs._cache._plans)
    assert planned > 0 and set(resumed._epochs._cache._plans) <= {planned, planned + 1}
    (path,) = tmp_path.iterdir()
    damaged = json.loads(path.read_text())
    damaged["rows"][0] += 1
    path.write_text(json.dumps(damaged))
    with pytest.warns(UserWarning, match="damaged.*planned again"):
        again = make_batches(split, SENTENCES, tmp_path)
    assert (again.rows(rows[-4:])["input_ids"] == first.rows(rows[-4:])["input_ids"]).all()


def test_source_shares_are_exact_to_one_part(split: SplitView) -> None:
    batches = make_batches(split, replace(SENTENCES, weights=(1.0, 3.0)))
    edge = int(split.sentence_offsets[split.document_offsets[split.source_edges[1]]]) + 5
    tokens = Counter(token < edge for row in row_texts(batches, epoch_rows(batches, 0)) for token in row)
    assert tokens[True] / tokens.total() == pytest.approx(0.25, abs=WINDOW / 16 / split.num_tokens + 0.02)
    seen = Counter(token for row in row_texts(batches, epoch_rows(batches, 1)) for token in row if token >= edge)
    assert max(seen.values()) - min(seen[token] for token in range(edge, 5 + split.num_tokens)) <= 2


@pytest.mark.parametrize("weights", [(), (1.0, 3.0)])
def test_every_window_has_each_sources_share(tmp_path: Path, weights: tuple[float, ...]) -> None:
    """Documents have one length, and three quarters of them are in the first source."""
    about = {"shard_sources": {"train": [*[0] * 18, *[1] * 6]}, "sources": ["a", "b"]}
    documents = [[[7] * 10] for _ in range(2_400)]
    write_store(tmp_path / "s", {"train": documents}, TOKENIZER, documents_per_shard=100, provenance=about)
    data = replace(SENTENCES, weights=weights)
    windows = make_batches(TokenStore.open(tmp_path / "s").split("train"), data)._epochs._windows
    for number in range(4 * windows.count):
        window = windows.get(number)
        edge = window.text.source_edges[1]
        read = np.arange(window.text.num_documents) if window.reading is None else window.reading.document
        assert (read < edge).mean() == pytest.approx(0.25 if weights else 0.75, abs=1.5 / 16)


def test_store_without_named_sources_is_one_source(tmp_path: Path) -> None:
    write_store(tmp_path / "s", {"train": [[[7] * 10] for _ in range(1_200)]}, TOKENIZER, documents_per_shard=100)
    split = TokenStore.open(tmp_path / "s").split("train")
    windows = make_batches(split, replace(SENTENCES, sources=("a",)))._epochs._windows
    read = [windows.get(number).text.num_documents for number in range(windows.count)]
    assert len(read) == 3 and sum(read) == 1_200 and split.num_sources == 0


def test_neighbouring_rows_are_uncorrelated(split: SplitView) -> None:
    batches = make_batches(split, PAIRS)
    numbers = np.concatenate([epoch_rows(batches, epoch) for epoch in range(6)])
    place = np.array([row[0] for row in row_texts(batches, numbers)])
    windows, _ = batches._epochs.locate(numbers)
    means = np.array([place[windows == window].mean() for window in range(windows[-1] + 1)])
    assert means.std() < 1.5 * place.std() / np.sqrt(16), "a window does not have 16 unrelated parts"
    within = windows[1:] == windows[:-1]
    rest = place - means[windows]
    correlation = stats.spearmanr(rest[1:][within], rest[:-1][within]).statistic
    assert abs(correlation) < 4 / np.sqrt(len(place)), "the rows of a window are not in random order"


def test_origins_are_numbered_in_the_whole_split(split: SplitView) -> None:
    batches = make_batches(split, PAIRS)
    numbers = epoch_rows(batches, 0)[::40]
    for row, where in zip(row_texts(batches, numbers), origins(batches, numbers, ("a", "b")), strict=True):
        document, first, _ = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", where[0]))
        assert split.sentence_offsets[first] <= row[0] - 5 < split.sentence_offsets[first] + 48
        assert split.document_offsets[document] <= first < split.document_offsets[document + 1]


@pytest.mark.parametrize("rows", ["crops", "pieces"])
def test_origins_of_records_are_their_sentences(split: SplitView, rows: Literal["crops", "pieces"]) -> None:
    batches = make_batches(split, replace(SENTENCES, rows=rows, packing="none"))
    numbers = epoch_rows(batches, 0)[::10]
    for row, where in zip(row_texts(batches, numbers), origins(batches, numbers, ("a", "b")), strict=True):
        document, *sentences = (int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", where[0]))
        for sentence, token in zip(sentences, (row[0] - 5, row[-1] - 5), strict=True):
            assert split.sentence_offsets[sentence] <= token < split.sentence_offsets[sentence + 1]
            assert split.document_offsets[document] <= sentence < split.document_offsets[document + 1]


@pytest.mark.parametrize("data", [LONG, replace(PAIRS, weights=(1.0, 3.0))])
def test_lanes_read_the_text_once_for_any_host_count(split: SplitView, data: DataConfig) -> None:
    def run() -> LaneBatches:
        return LaneBatches(lambda lane: make_batches(split, data, lane=lane), 4, BATCH)

    whole = [run().batch(step, BATCH) for step in range(0, 30, 7)]
    for hosts in (2, 4, 8):
        size = BATCH // hosts
        opened = [run() for _ in range(hosts)]
        for number, step in enumerate(range(0, 30, 7)):
            parts = [one.batch(step, BATCH, slice(n * size, (n + 1) * size)) for n, one in enumerate(opened)]
            for key, values in whole[number].items():
                assert (values == np.concatenate([part[key] for part in parts])).all()
        assert all(sum(lane is not None for lane in one._lanes) <= 4 // min(hosts, 4) + 1 for one in opened)
    lanes = [run().lane(number) for number in range(4)]
    if data.weights == ():
        seen = [{token for row in row_texts(lane, epoch_rows(lane, 0)) for token in row} for lane in lanes]
        assert sum(map(len, seen)) == len(set.union(*seen)) == split.num_tokens
        assert max(map(len, seen)) < 2 * min(map(len, seen)), "parts are single documents here"


@pytest.mark.parametrize("lanes", [1, 2])
def test_released_batches_are_planned_again(split: SplitView, lanes: int) -> None:
    def make(lane: Lane) -> RowBatches:
        return make_batches(split, SENTENCES, lane=lane)

    batches = make(WHOLE_BATCH) if lanes == 1 else LaneBatches(make, lanes, BATCH)
    before = batches.batch(1, BATCH)
    first = [text for _, text, _ in batches.texts(np.arange(4))]
    assert next(text for _, text, _ in batches.texts(np.arange(4))) is first[0]
    batches.release()
    assert not any(text is old for _, text, _ in batches.texts(np.arange(4)) for old in first)
    assert all((values == before[key]).all() for key, values in batches.batch(1, BATCH).items())


@pytest.mark.parametrize("window_tokens", [WINDOW, 10**6])
def test_batches_are_freed_without_garbage_collection(split: SplitView, window_tokens: int) -> None:
    """A window takes a gigabyte; a reference cycle would keep an earlier stage's window in memory."""
    view = split.select(split.parts(10**6))
    batches = RowBatches(view, TOKENIZER, SENTENCES, SEED, objectives=("mlm",), window_tokens=window_tokens)
    ((_, text, _),) = batches.texts(np.arange(1))
    batches.rows(np.arange(1))
    window, whole = weakref.ref(text), weakref.ref(view)
    gc.disable()
    try:
        del batches, text, view
        assert window() is whole() is None
    finally:
        gc.enable()


def test_small_sources_share_a_held_out_set(tmp_path: Path) -> None:
    """Eighteen sources of 2 to 19 documents: the 15 largest have their own sets, the others share one."""
    documents = [[[5 + source]] for source in range(18) for _ in range(2 + source)]
    homes = [source for source in range(18) for _ in range(2 + source)]
    splits = {"train": documents, "held_out": documents}
    about = {"sources": [f"s{n}" for n in range(18)]}
    write_store(tmp_path / "store", splits, TOKENIZER, documents_per_shard=1, provenance=about)
    store = TokenStore.open(tmp_path / "store")
    manifest = store.manifest | {
        "provenance": store.manifest["provenance"] | {"shard_sources": {"train": homes, "held_out": homes}}
    }
    content = StoredText(TokenStore(store.path, manifest), ("mlm",))
    sets = content.held_out(replace(LONG, sequence_length=8, sources=()), 0)
    assert [*sets] == ["eval", *(f"eval/source_{n}" for n in range(3, 18)), "eval/small_sources"]
    assert sets["eval/small_sources"].split.num_documents == 2 + 3 + 4
