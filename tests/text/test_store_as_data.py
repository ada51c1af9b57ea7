"""A run reads a token store by its path (`data.store`), without its sources."""

import re
import shutil

import numpy as np
import pytest
from small_corpus import changed

from bertjax.config import Config, DataConfig, validate
from bertjax.input import training_data
from bertjax.input.lanes import LaneBatches
from bertjax.input.training_data import open_training_data
from bertjax.pipeline.preparation import prepare as prepare_verb
from bertjax.pipeline.vocabulary import with_vocabulary
from bertjax.storage.progress import no_progress
from bertjax.text.open_store import open_store
from bertjax.text.prepare import prepare, require_sources
from bertjax.text.store import local_copy
from bertjax.text.store.manifest import BLOCK_BYTES


def test_a_store_gives_the_batches_of_its_sources(data, tmp_path):
    by_sources = open_training_data([data], no_progress)
    first_rows = by_sources.train(data, 1).rows(np.arange(8))
    expected = {key: values.tobytes() for key, values in first_rows.items()}
    store = shutil.move(prepare(data), tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "text")
    (tmp_path / "vocab.txt").unlink()
    resolved = with_vocabulary(
        validate(Config(data=DataConfig(store=(str(store),), sources=("text:gone/*.txt",))))
    ).data
    assert (resolved.sources, resolved.lowercase, resolved.vocab_size) == (
        (),
        data.lowercase,
        by_sources.tokenizer.vocab_size,
    )
    require_sources(resolved)
    content = open_training_data([resolved], no_progress)
    assert content.fingerprint == by_sources.fingerprint and content.location == str(tmp_path / "elsewhere")
    rows = content.train(resolved, 1).rows(np.arange(8))
    assert {key: values.tobytes() for key, values in rows.items()} == expected


def test_settings_that_contradict_a_store_are_refused(data, tmp_path):
    store = (str(prepare(data)),)
    with pytest.raises(ValueError, match="no manifest"):
        require_sources(changed(data, store=(str(tmp_path),)))
    with pytest.raises(ValueError, match="is a finished token store; leave it out to prepare sources"):
        prepare_verb(Config(data=changed(data, store=store)))
    two = changed(data, store=store, weights=(1.0, 2.0))
    with pytest.raises(ValueError, match="the token store has 1 sources; give one for each"):
        open_training_data([two], no_progress).train(two, 0)


SENTENCES = {"rows": "doc_sentences", "sequence_length": 32, "packing": "pairs"}


@pytest.fixture
def three(data, tmp_path):
    """Three stores of the forty files as two sources: both together, and each by itself."""
    for number in range(25, 40):
        (tmp_path / "more").mkdir(exist_ok=True)
        shutil.move(tmp_path / "text" / f"{number}.txt", tmp_path / "more")
    sources = (*data.sources, f"text:{tmp_path}/more/*.txt")
    return prepare(changed(data, sources=sources)), *(prepare(changed(data, sources=(source,))) for source in sources)


def rows_of(content, data):
    rows = content.train(data, 1, ("mlm",), 8).rows(np.arange(24))
    return {key: values.tolist() for key, values in rows.items()}


@pytest.mark.parametrize("weights", [(), (2.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("window", [1 << 29, 1_000])
def test_two_stores_are_read_like_two_sources(data, three, monkeypatch, weights, window):
    monkeypatch.setattr(training_data, "WINDOW_TOKENS", window)
    together, *apart = map(str, three)
    by_sources = changed(data, store=(together,), weights=weights, lanes=2, **SENTENCES)
    by_stores = changed(by_sources, store=tuple(apart))
    ours, theirs = (open_training_data([one], no_progress, ("mlm",)) for one in (by_stores, by_sources))
    made = rows_of(ours, by_stores)
    assert made == rows_of(theirs, by_sources)
    assert ours.size("train") == theirs.size("train") and ours.location == ""
    counts = [store.split("train").token_counts for store in (open_store(by_stores), open_store(by_sources))]
    assert np.array_equal(*counts) and counts[0].any()
    # Any number of hosts reads the same batches, also after a restart.
    again = open_training_data([by_stores], no_progress, ("mlm",)).train(by_stores, 1, ("mlm",), 8)
    assert isinstance(again, LaneBatches) == (window == 1_000)
    parts = [again.batch(2, 8, slice(2 * host, 2 * host + 2)) for host in (3, 1, 0, 2)]
    assert [row for host in (2, 1, 3, 0) for row in parts[host]["input_ids"].tolist()] == made["input_ids"][16:]
    held_out = ours.held_out(by_stores, 1, ("mlm",))
    assert {*held_out} == {"eval", "eval/source_0", "eval/source_1"}
    single = open_training_data([changed(by_stores, store=apart[1:], weights=())], no_progress, ("mlm",))
    assert np.array_equal(
        held_out["eval/source_1"].rows(np.arange(4))["input_ids"],
        single.held_out(by_stores, 1, ("mlm",))["eval"].rows(np.arange(4))["input_ids"],
    )


def test_active_sources_may_name_stores(data, three):
    """`active_sources` may name stores like sources, for a mixture that changes by stage."""
    _, *apart = map(str, three)
    stage = changed(data, sources=(), store=tuple(apart), active_sources=(apart[1],), **SENTENCES)
    content = open_training_data([stage], no_progress, ("mlm",))
    assert content.train(stage, 1, ("mlm",)).shares.tolist() == [0, 1]
    assert stage.mixed == tuple(apart)


def test_stores_that_cannot_be_joined_are_refused(data, three, tmp_path):
    _, first, second = map(str, three)
    vocabulary = (tmp_path / "vocab.txt").read_text()
    (tmp_path / "other.txt").write_text(f"{vocabulary}\nextra")
    other = str(prepare(changed(data, vocab=str(tmp_path / "other.txt"))))
    shutil.copytree(first, tmp_path / "copy")
    for stores, message in (
        ((first, other), "has another vocabulary or other text rules than"),
        ((first, second, first), "has the same text as"),
        ((first, str(tmp_path / "copy")), "has the same text as"),
        ((first, str(tmp_path)), "no manifest"),
    ):
        with pytest.raises(ValueError, match=message):
            require_sources(changed(data, store=stores))
    with pytest.raises(ValueError, match=r"give one for each of the 2 data\.store"):
        validate(Config(data=DataConfig(store=(first, second), weights=(1.0, 2.0, 3.0))))
    with pytest.raises(ValueError, match=r"'c' is not one of data\.store"):
        validate(Config(data=DataConfig(store=("a", "b"), active_sources=("c",))))


def test_source_names_must_match_the_store(data, three, tmp_path):
    """`data.sources` name a store's sources only if they are the same in the same order."""
    store, *_ = map(str, three)
    first, second = (f"text:{tmp_path}/{folder}/*.txt" for folder in ("text", "more"))
    stage = changed(data, sources=(first, second), store=(store,), active_sources=(second,), **SENTENCES)
    resolved = with_vocabulary(validate(Config(data=stage))).data
    assert resolved.sources == stage.sources
    moved = ("text:/elsewhere/text/*.txt", "text:/elsewhere/more/*.txt")
    open_training_data([changed(stage, sources=moved, active_sources=moved[1:])], no_progress, ("mlm",))
    assert open_training_data([resolved], no_progress, ("mlm",)).train(resolved, 1, ("mlm",)).shares.tolist() == [0, 1]
    for changes, message in (
        (
            {"sources": (second, first)},
            r"data\.sources has 2 \(text:more/.*, text:text/.*the store has 2 \(text:text/",
        ),
        ({"sources": (second,)}, r"data\.sources has 1 .* the store has 2 "),
        ({"sources": (first, f"jsonl:{tmp_path}/more/*.txt"), "active_sources": (first,)}, "differ from the store's"),
        ({"sources": (second, first), "active_sources": (), "weights": (1.0, 2.0)}, "differ from the store's"),
        (
            {"sources": ("text:en/*.txt", "text:de/*.txt"), "active_sources": ("text:de/*.txt",)},
            "differ from the store's",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            open_store(changed(stage, **changes))
    later = changed(stage, sources=(second, first))
    with pytest.raises(ValueError, match="differ from the store's"):
        open_training_data([changed(later, active_sources=()), later], no_progress, ("mlm",))


@pytest.mark.parametrize("division", ["never", "always"])
def test_stores_of_other_held_out_shares_are_noted(data, tmp_path, division):
    """With the share that the note names, a document in both stores is held out in both."""

    def both(share):
        names = (f"text:{tmp_path}/text/{glob}.txt" for glob in ("*", "3*"))
        configs = [changed(data, sources=(name,), split_documents=division, held_out=share) for name in names]
        return open_training_data([changed(data, store=tuple(str(prepare(one)) for one in configs))], no_progress).notes

    (note,) = [note for note in both(0.01) if note.startswith("stores ")]
    assert "may be held out in one and trained on in the other" in note
    assert not [note for note in both(float(note.rpartition(" ")[2])) if note.startswith("stores ")]


def test_stores_that_divide_text_differently_are_noted(data):
    store = prepare(changed(data, split_documents="always"))
    notes = open_training_data([changed(data, store=(str(prepare(data)), str(store)))], no_progress).notes
    assert any("divide long documents not at all and after 1,000 characters" in note for note in notes)


def test_cache_bound_must_hold_all_blocks_of_small_stores(data, three, tmp_path):
    """The message names the bound and the sum of the stores' blocks."""
    stores = tuple(map(str, three[1:]))
    needed = []
    for names in (stores[:1], stores[1:], stores):
        bounded = changed(data, store=names, cache_dir=str(tmp_path / "near"), cache_gb=0.002)
        with pytest.raises(ValueError, match=r"data\.cache_gb=0\.002: a run holds 3 windows of the text, or") as error:
            open_store(bounded)
        needed.append(float(re.findall(r"here (\S+) GB", str(error.value))[0]))
        assert open_store(changed(bounded, cache_gb=needed[-1])).split("train").num_tokens
    assert needed[2] == pytest.approx(needed[0] + needed[1], abs=0.0021)


def test_cache_bound_must_hold_the_windows_of_a_host(data, tmp_path, monkeypatch):
    """A window is an eighth of the text, a lane's window a quarter of that; a copy holds three per lane."""
    store = prepare(data)
    tokens = training_data.open_store(changed(data, store=(str(store),))).split("train").num_tokens
    for module in (training_data, local_copy):
        monkeypatch.setattr(module, "WINDOW_TOKENS", tokens // 8)
    total = sum(file.path.stat().st_size // BLOCK_BYTES + 1 for file in open_store(changed(data)).files()) * BLOCK_BYTES
    bounded = changed(data, store=(str(store),), cache_dir=str(tmp_path / "near"), cache_gb=total / 2e9, lanes=32)
    content = open_training_data([bounded], no_progress)
    content.require_cached(bounded, 64, np.arange(10))  # of five lanes
    with pytest.raises(ValueError, match=r"data\.lanes=32: this host reads 6 lanes with 3 windows each") as error:
        content.require_cached(bounded, 64, np.arange(11))
    needed = float(re.findall(r"each, (\S+) GB in all", str(error.value))[0])
    assert needed == pytest.approx(total * 18 / 32 / 1e9, rel=0.02)
    content.require_cached(changed(bounded, cache_gb=needed), 64, np.arange(11))
    content.require_cached(bounded, 65, np.arange(65))  # more hosts than lanes
    open_training_data([changed(bounded, cache_dir="")], no_progress).require_cached(bounded, 64, np.arange(64))
