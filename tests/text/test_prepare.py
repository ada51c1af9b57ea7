"""Preparing a store: its content, equal bytes from any processes and machines, and no partial results."""

import errno
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_corpus import VOCAB, changed, content, generated_text
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, decoders

from bertjax.config import DataConfig
from bertjax.text import corpus, file_caches, shards, trained_vocabulary
from bertjax.text import prepare as module
from bertjax.text.corpus import Corpus, draws
from bertjax.text.division import Division
from bertjax.text.prepare import prepare, prepare_share, reading_notes
from bertjax.text.sentences import split_sentences
from bertjax.text.store import writer
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import json_sha256
from bertjax.text.trained_vocabulary import prepare_vocabulary
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece


def sentences_of(view, tokens):
    ids = view.tokens(view.sentence_offsets[:-1], np.diff(view.sentence_offsets))
    spelled = [tokens[i] for i in ids]
    bounds = view.sentence_offsets[view.document_offsets]
    return [spelled[a:b] for a, b in itertools.pairwise(bounds)]


def test_store_matches_a_plain_reimplementation(data):
    store = TokenStore.open(prepare(data))
    library = BertWordPieceTokenizer(vocab={token: place for place, token in enumerate(VOCAB)}, lowercase=True)
    expected = {"train": [], "held_out": []}
    for path in sorted(Path(data.sources[0].removeprefix("text:")).parent.iterdir()):
        text = "\n".join(path.read_text().split("\n\n"))
        split = "held_out" if draws(text)[0] < 0.25 else "train"
        encodings = [library.encode(s, add_special_tokens=False) for s in split_sentences(text)]
        expected[split].append([token for encoding in encodings for token in encoding.tokens])
    for split, documents in expected.items():
        assert len(documents) > 2
        assert sentences_of(store.split(split), VOCAB) == documents
    assert (
        store.fingerprint == "bcc1fad32646f0e41d5b9e459d8a7754788c8b2cbe2ffebabc20f9627448b1f9"
    )  # a change requires a new READING_VERSION
    provenance = store.manifest["provenance"]
    assert provenance["text_bytes"] == sum(len("\n".join(generated_text(n).split("\n\n"))) for n in range(40))
    assert provenance["unknown_tokens"] == 0


def with_byte_bpe(data, **values):
    """The same config with a byte-level BPE that is trained on the text."""
    tokenizer = {"vocab": "", "vocab_size": 300, "tokenizer": "byte_bpe", "lowercase": False, "strip_accents": False}
    return changed(data, **tokenizer, **values)


@pytest.mark.parametrize("prefix_space", [False, True])
def test_document_tokens_are_its_spaced_sentences(data, tmp_path, monkeypatch, prefix_space):
    monkeypatch.setattr("bertjax.text.documents.DOCUMENT_CAP", 300)  # some documents are read in parts
    monkeypatch.setattr(shards, "_BATCH_CHARACTERS", 300)
    store = TokenStore.open(prepare(with_byte_bpe(data, prefix_space=prefix_space)))
    files = [str(store.path / name) for name in ("vocab.json", "merges.txt")]
    library = ByteLevelBPETokenizer(*files, add_prefix_space=prefix_space)
    texts = [(tmp_path / "text" / f"{number:02}.txt").read_text() for number in range(40)]
    documents = [split_sentences("\n".join(text.split("\n\n"))) for text in texts]
    assert min(map(len, documents)) > 10 and max(map(len, texts)) > 400
    expected = [library.encode(" ".join(document)).tokens for document in documents]
    tokenizer = store.tokenizer()
    views = [store.split(split) for split in ("train", "held_out")]
    assert sorted(
        document_tokens for view in views for document_tokens in sentences_of(view, tokenizer.tokens)
    ) == sorted(expected)
    for view in views:
        first = view.tokens(view.sentence_offsets[:-1], np.ones(view.num_sentences, np.int64))
        begins = np.isin(np.arange(view.num_sentences), view.document_offsets)
        assert begins.sum() == view.num_documents
        assert tokenizer.is_continuation[first].tolist() == (begins & (not prefix_space)).tolist()


def test_no_space_is_added_to_running_text(data, tmp_path):
    """No space is added between Chinese sentences on a line; the text has one between lines and languages."""
    (tmp_path / "zh.txt").write_text(
        "他在河边。她在河边。\n\n河很高。The river. 河在，The river.\n" * 9, encoding="utf-8"
    )
    chinese = with_byte_bpe(data, prefix_space=False, split_documents="never")
    store = TokenStore.open(prepare(changed(chinese, sources=(*data.sources, f"text:{tmp_path}/zh.txt"))))
    tokens = store.tokenizer().tokens
    documents = [document for split in ("train", "held_out") for document in sentences_of(store.split(split), tokens)]
    text = " ".join((tmp_path / "zh.txt").read_text(encoding="utf-8").split())
    assert text in map(decoders.ByteLevel().decode, documents)


def test_store_names_change_only_with_encoding(data):
    assert prepare(data).name == "store-d331e61e5bc6"
    assert prepare(with_byte_bpe(data)).name == "store-723162baf060"
    # A store with this name had no space before any sentence.
    assert prepare(with_byte_bpe(data, prefix_space=False)).name != "store-c830c7e6b12e"


@pytest.mark.run
def test_same_bytes_for_any_number_of_processes(data, tmp_path):
    stores = [content(prepare(changed(data, root=str(tmp_path / f"root{n}"), workers=n))) for n in (1, 3)]
    assert stores[0] == stores[1]
    assert len(stores[0]) > 30
    vocabularies = [
        content(
            prepare_vocabulary(
                changed(data, root=str(tmp_path / f"root{n}"), workers=n, vocab="", vocab_size=60)
            ).parent
        )
        for n in (1, 2)
    ]
    assert vocabularies[0] == vocabularies[1]


def test_same_bytes_from_shards(data, tmp_path):
    """Three of four machines work at the same time: each unit is made once, and the store equals a single process's."""
    alone = prepare(changed(data, root=str(tmp_path / "alone")))
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads can hang
    sizes = (corpus.UNIT_BYTES, corpus.MAX_UNITS)
    shards = [context.Process(target=prepare_share_of, args=(sizes, data, index)) for index in (2, 0, 3)]
    for shard in shards:
        shard.start()
    for shard in shards:
        shard.join(300)
        assert shard.exitcode == 0
    made_numbers = [int(number) for number in (tmp_path / "made").read_text().split()]
    assert sorted(made_numbers) == list(range(len(Corpus.of(data).units)))
    assert not list((tmp_path / "data").glob("store-????????????"))
    assert content(prepare(data)) == content(alone)
    assert prepare_share(data, 1, 4) == (len(made_numbers), len(made_numbers))


def prepare_share_of(sizes, data, index):
    """Prepare share `index` of four in a separate process, with units of these sizes, and log their numbers."""
    corpus.UNIT_BYTES, corpus.MAX_UNITS = sizes

    def logging(unit, job):
        with open(Path(data.root).parent / "made", "a") as file:
            file.write(f"{unit.number} ")
        return shards.make_shards(unit, job)

    module.make_shards = logging
    prepare_share(data, index, 4)


@pytest.mark.run
def test_unit_of_a_dead_process_is_taken_over(data, monkeypatch):
    """Waits for a unit that another process has claimed, and makes it once that process ended without a result."""
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    expected = content(prepare(changed(data, root=f"{data.root}-alone")))
    interrupted(data, 3)
    (folder,) = Path(data.root).glob("store-*.partial")
    code = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 3); print(flush=True)"
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()", str(folder / "unit-claims")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        amounts = []

        def progress(what, done, total):
            if [done] == amounts[-1:]:  # waiting
                other.kill()
            amounts.append(done)

        actual = content(prepare(data, progress))
        other.stdin.close()
    assert actual == expected
    assert other.returncode == -signal.SIGKILL, "its unit was not waited for"


@pytest.mark.parametrize("vocab_size", [0, 80])
def test_late_machine_does_not_wait_for_others(data, tmp_path, monkeypatch, vocab_size):
    """While one makes its first unit, another makes all, and a third prepares other text under the same root."""
    if vocab_size:
        data = changed(data, vocab="", vocab_size=vocab_size)
    other = changed(data, sources=(f"text:{tmp_path}/text/[0-2]*.txt",))
    expected = content(prepare(changed(other, root=str(tmp_path / "other"))))
    results = []

    def make(unit, job):
        if unit.number == 0 and not results:
            monkeypatch.setattr(module, "make_shards", shards.make_shards)
            results.append(late.submit(lambda: content(prepare(other))).result(20))
            results.append(late.submit(prepare_share, data, 1, 2).result(20))
        return shards.make_shards(unit, job)

    monkeypatch.setattr(module, "make_shards", make)
    with ThreadPoolExecutor(1) as late:  # locks of files exclude threads too; claims on units do not
        done, total = prepare_share(data, 0, 2)
    assert done == total > 2
    assert results == [expected, (total, total)]


@pytest.mark.parametrize(("index", "count"), [(4, 4), (0, 0), (-1, 3)])
def test_share_that_does_not_exist_is_refused(data, index, count):
    with pytest.raises(ValueError, match=rf"--shard {index}/{count}: shards of {count} are numbered from 0"):
        prepare_share(data, index, count)


def test_finished_store_is_reused(data, monkeypatch):
    first = prepare(data)
    vocab = prepare_vocabulary(changed(data, vocab=""))
    before = content(first)
    monkeypatch.setattr(module, "make_shards", None)
    monkeypatch.setattr(trained_vocabulary, "train_tokenizer", None)
    assert prepare(data) == first
    assert prepare_vocabulary(changed(data, vocab="")) == vocab
    assert content(first) == before


def test_moved_files_are_accepted_changed_ones_refused(data, tmp_path):
    first = prepare(data)
    shutil.move(tmp_path / "text", tmp_path / "moved")
    moved = changed(data, sources=(f"text:{tmp_path}/moved/*.txt",))
    assert prepare(moved) == first
    (tmp_path / "moved" / "07.txt").write_text(generated_text(700))
    assert prepare(moved) != first


@pytest.mark.parametrize(
    "values",
    [{"held_out": 0.3}, {"strip_accents": False}, {"vocab": "other.txt"}, {"sources": 2}],
)
def test_other_inputs_make_another_store(data, tmp_path, values):
    (tmp_path / "other.txt").write_text("\n".join([*VOCAB, "more"]))
    if "vocab" in values:
        values = {"vocab": str(tmp_path / "other.txt")}
    if "sources" in values:
        values = {"sources": data.sources * 2}
    assert prepare(changed(data, **values)) != prepare(data)


def test_store_records_sources(data, tmp_path):
    two = changed(data, sources=(f"text:{tmp_path}/text/0*.txt", f"text:{tmp_path}/text/[123]*.txt"))
    store = TokenStore.open(prepare(two))
    view = store.split("train")
    assert view.num_sources == 2 and view.source_edges[-1] == view.num_documents
    alone = TokenStore.open(prepare(changed(data, sources=two.sources[:1]))).split("train")
    first = view.select_sources(0)
    assert first.num_documents == view.source_edges[1] == alone.num_documents < view.select_sources(1).num_documents
    words = [one.tokens(one.sentence_offsets[:9], np.diff(one.sentence_offsets[:10])) for one in (first, alone, view)]
    np.testing.assert_array_equal(words[0], words[1])
    np.testing.assert_array_equal(words[0], words[2])


def test_source_weights_do_not_change_the_store(data, tmp_path):
    two = changed(
        data, sources=(f"text:{tmp_path}/text/0*.txt", f"text:{tmp_path}/text/[123]*.txt"), vocab="", vocab_size=80
    )
    store = prepare(two)
    for values in ({"weights": (1.0, 9.0)}, {"temperature": 0.3}, {"packing": "pairs"}):
        assert prepare(changed(two, **values)) == store
    assert prepare_vocabulary(changed(two, vocab_temperature=0.3)) != prepare_vocabulary(two)


def test_digests_are_cached_until_a_file_changes(data, tmp_path, monkeypatch):
    monkeypatch.setattr(file_caches, "_SETTLED_SECONDS", -1.0)
    before = Corpus.of(data).description()
    read = []
    monkeypatch.setattr(file_caches, "digest", lambda file: read.append(file.path) or "other")
    assert Corpus.of(data).description() == before
    path = tmp_path / "text" / "03.txt"
    path.write_text(path.read_text() + "x")
    assert Corpus.of(data).description() != before
    assert read == [str(path)]


def test_digests_notice_a_change_with_size_and_time_restored(data, tmp_path, monkeypatch):
    monkeypatch.setattr(file_caches, "_SETTLED_SECONDS", -1.0)
    before = Corpus.of(data)
    path = tmp_path / "text" / "03.txt"
    state, content = path.stat(), path.read_text()
    while path.stat().st_ctime_ns == state.st_ctime_ns:  # within the resolution of the clock
        path.write_text(content.swapcase())
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    with pytest.raises(ValueError, match=r"03\.txt was changed while it was read"):
        before.require_unchanged()
    assert Corpus.of(data).description() != before.description()


def test_held_out_depends_only_on_words(data, tmp_path):
    texts = {n: generated_text(n) for n in range(40)}
    evaluated = {n for n, text in texts.items() if draws(text)[0] < 0.25}
    assert 3 < len(evaluated) < 20
    assert evaluated == {n for n, text in texts.items() if draws("  " + text.replace("\n\n", "\n "))[0] < 0.25}
    whole = tmp_path / "all.txt"
    whole.write_text("\n\n".join("\n".join(split_sentences(texts[n])) for n in reversed(range(40))))
    other = TokenStore.open(prepare(changed(data, sources=(f"lines:{whole}",))))
    one, two = (sentences_of(s.split("held_out"), VOCAB) for s in (TokenStore.open(prepare(data)), other))
    assert sorted(one) == sorted(two)


spaces = "".join(filter(str.isspace, map(chr, range(sys.maxunicode + 1))))


@given(
    st.lists(st.one_of(st.sampled_from([*spaces, "the", "—", "中", "  "]), st.characters(exclude_categories=["Cs"])))
)
def test_draws_depend_on_the_words_of_str_split(parts):
    text = "".join(parts)
    assert corpus._words(text) == " ".join(text.split()).encode()


def test_draws_are_uniform_and_independent():
    drawn = np.array([draws(f"document {n}") for n in range(20_000)])
    assert abs((drawn[:, 0] < 0.1).mean() - 0.1) < 0.01
    assert abs((drawn[:, 1] < 0.1).mean() - 0.1) < 0.01
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03


@pytest.mark.parametrize(("held_out", "counts"), [(0.0, "0 of 40"), (0.999999, "40 of 40")])
def test_too_few_documents_in_a_split_are_refused(data, held_out, counts):
    with pytest.raises(ValueError, match=rf"data\.held_out={held_out} leaves {counts} documents for evaluation and"):
        prepare(changed(data, held_out=held_out))
    assert not list(Path(data.root).glob("store*"))


def test_missing_sources_are_refused(data):
    with pytest.raises(ValueError, match=r"data\.sources is empty; give at least one, e\.g\. --data\.sources"):
        prepare(changed(data, sources=()))


def test_binary_file_is_named_and_costs_no_finished_unit(data, tmp_path):
    (tmp_path / "text" / "31.txt").write_bytes(b"ELF\x00\xff\xfe\x80" * 99)
    with pytest.raises(ValueError, match=r"31\.txt"):
        prepare(changed(data, workers=2))
    assert len(list(Path(data.root).glob("store*.partial/unit-*.json"))) > 2


def test_unit_that_fails_leaves_no_files(data, tmp_path):
    (tmp_path / "text" / "02.txt").write_bytes(b"\xff" * 99)
    job = shards.ShardJob(tmp_path, "inputs", "settings", Path(data.vocab), data, Division(0.25))
    before = content_names(tmp_path)
    with pytest.raises(ValueError, match=r"02\.txt"):
        shards.make_shards(Corpus.of(data).units[0], job)
    assert content_names(tmp_path) - before <= {"data"}


def content_names(folder):
    return {path.name for path in folder.iterdir()}


def test_sentences_without_tokens_are_left_out(data, tmp_path):
    (tmp_path / "text" / "00.txt").write_text("The river. \u200b\u200b! The river.\n\n\u200b\n\nIt was.")
    (tmp_path / "text" / "01.txt").write_text("\u200b\u200d")
    store = TokenStore.open(prepare(data))
    documents = [document for name in ("train", "held_out") for document in sentences_of(store.split(name), VOCAB)]
    assert len(documents) == 39
    assert [d for d in documents if "[UNK]" in d] == [
        ["the", "river", ".", "[UNK]", "the", "river", ".", "it", "was", "."]
    ]


def test_giant_line_loses_no_tokens(data, tmp_path):
    (tmp_path / "giant.txt").write_text("the playing " * 300_000)
    store = TokenStore.open(prepare(changed(data, sources=(*data.sources, f"text:{tmp_path}/giant.txt"))))
    # 4 million characters, with "playing" spelled by letters
    small = TokenStore.open(prepare(data))
    tokens = [sum(s.split(name).num_tokens for name in ("train", "held_out")) for s in (store, small)]
    assert tokens[0] - tokens[1] == 300_000 * 8


def test_file_changed_during_prepare_costs_only_its_unit(data, tmp_path, monkeypatch):
    first = tmp_path / "text" / "00.txt"

    def meddle(unit, job):
        first.write_text(first.read_text().replace("the", "and"))
        return shards.make_shards(unit, job)

    monkeypatch.setattr(module, "make_shards", meddle)
    with pytest.raises(ValueError, match=r"00\.txt was changed while it was read"):
        prepare(data)
    assert not list(Path(data.root).glob("store-*/manifest.json"))
    assert units_made(data, monkeypatch) == [0]


def units_made(data, monkeypatch):
    """Prepare, compare the store with one made from scratch, and return the numbers of the units made."""
    processed = []
    monkeypatch.setattr(module, "make_shards", shards.make_shards)
    expected = content(prepare(changed(data, root=f"{data.root}-other")))
    monkeypatch.setattr(
        module, "make_shards", lambda unit, job: processed.append(unit) or shards.make_shards(unit, job)
    )
    assert content(prepare(data)) == expected
    return [unit.number for unit in processed]


@pytest.mark.parametrize("change", ["same size", "new file", "other settings", "damage"])
def test_finished_units_of_unchanged_files_are_taken_over(data, tmp_path, monkeypatch, change):
    total = len(Corpus.of(data).units)
    interrupted(data, total)
    (folder,) = Path(data.root).glob("store-*.partial")
    finished = len(list(folder.glob("unit-*.json")))
    first = tmp_path / "text" / "00.txt"
    if change == "same size":
        first.write_text(first.read_text().replace("the", "and").replace("river", "which"))
    elif change == "new file":  # a unit by itself, so that the numbers of all others change
        (tmp_path / "text" / "0.txt").write_text(generated_text(99, 90))
    elif change == "other settings":
        data = changed(data, lowercase=False)
    else:
        (folder / "train-00003.tokens").write_bytes(b"cut")
        first.write_text(first.read_text().replace("the", "and"))
    processed = units_made(data, monkeypatch)
    later = [*range(finished, total)]
    expected = {
        "same size": [0, *later],
        "new file": [0, *(number + 1 for number in later)],
        "other settings": [*range(total)],
        "damage": [0, 3, *later],
    }
    assert finished >= 5 and processed == expected[change]


def test_touched_file_costs_no_unit(data, tmp_path, monkeypatch):
    def touch(unit, job):
        os.utime(tmp_path / "text" / "00.txt")
        return shards.make_shards(unit, job)

    expected = content(prepare(changed(data, root=str(tmp_path / "other"))))
    monkeypatch.setattr(module, "make_shards", touch)
    assert content(prepare(data)) == expected


@pytest.mark.parametrize("moment", ["write_durably", "unlink", "rename"])
def test_interrupted_publication_loses_no_unit(data, tmp_path, monkeypatch, moment):
    expected = content(prepare(changed(data, root=str(tmp_path / "other"))))
    prepare_vocabulary(data)

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    change = getattr(Path, moment, None)

    def killed(path, *values, **options):
        if "store-" in str(path) and path.name.startswith(("unit-00001", "store-")):
            raise KeyboardInterrupt
        return change(path, *values, **options)

    with monkeypatch.context() as patch:
        if moment == "write_durably":
            patch.setattr(writer, moment, full)
        else:
            patch.setattr(Path, moment, killed)
        with pytest.raises((OSError, KeyboardInterrupt), match=r"make room|^$"):
            prepare(data)
    assert not list(Path(data.root).glob("store-????????????"))
    processed = []
    monkeypatch.setattr(
        module, "make_shards", lambda unit, job: processed.append(unit) or shards.make_shards(unit, job)
    )
    assert content(prepare(data)) == expected and not processed


SCRIPT = """
import time
from bertjax.config import DataConfig
from bertjax.text import corpus, shards, prepare
corpus.UNIT_BYTES, corpus.MAX_UNITS = 2500, 1000
calls = 0
def no_further(what, done, total):
    global calls
    calls += 1
    if calls > {units}:
        time.sleep(600)
if __name__ == "__main__":
    prepare.prepare(DataConfig(**{values!r}), no_further)
"""


def script(tmp_path, data, units, before=""):
    """Write a script that prepares and hangs after a number of units; returns its command."""
    path = tmp_path / "script.py"
    path.write_text(before + SCRIPT.format(values=vars(data), units=units))
    return [sys.executable, str(path)]


@pytest.mark.run
@pytest.mark.parametrize(("workers", "units"), [(1, False), (2, True)])
def test_killed_prepare_continues(data, tmp_path, monkeypatch, workers, units):
    if units:
        (tmp_path / "units.txt").write_text("river with\nof the\tentity\n")
        data = changed(data, units=f"list:{tmp_path}/units.txt", masking="phrases")
    expected = content(prepare(data))
    data = changed(data, root=str(tmp_path / "killed"), workers=workers)
    name = prepare(changed(data, root=str(tmp_path / "name"), workers=1)).name
    folder = Path(data.root) / f"{name}.partial"
    delay = random.Random(workers)
    for units in (1, 2, 2):
        before = len(list(folder.glob("unit-*.json")))
        running = subprocess.Popen(script(tmp_path, data, units), stdout=subprocess.PIPE)
        while len(list(folder.glob("unit-*.json"))) < before + units - 1:
            time.sleep(0.001)
            assert running.poll() is None
        time.sleep(delay.random() / 50)
        running.send_signal(signal.SIGKILL)
        running.communicate()  # ends when the last of its workers, which hold its output open, has ended too
        assert not list(Path(data.root).glob("store-????????????"))
    finished = list(folder.glob("unit-*.json"))
    assert finished
    processed = []
    monkeypatch.setattr(
        module, "make_shards", lambda unit, job: processed.append(unit) or shards.make_shards(unit, job)
    )
    assert content(prepare(changed(data, workers=1))) == expected
    assert len(processed) == len(Corpus.of(data).units) - len(finished)
    assert not folder.exists()


def test_parts_of_other_inputs_are_not_mixed_in(data, tmp_path):
    target = prepare(data)
    expected = content(target)
    target.rename(tmp_path / "kept")
    interrupted(data, 7)
    folder = target.with_name(f"{target.name}.partial")
    record = folder / "unit-00002.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "inputs": "of others"}))
    stale = folder / "train-00002.tokens"
    stale.write_bytes(bytes(stale.stat().st_size))
    (folder / "unit-00003.json").write_text("{")
    (folder / "train-00004.sentences").write_bytes(b"cut")
    (folder / "held_out-00000.documents").unlink(missing_ok=True)
    assert content(prepare(data)) == expected


def interrupted(data, units):
    """Run prepare, interrupted as by Ctrl-C after some units."""

    def stop(what, done, total):
        nonlocal units
        units -= 1
        if not units:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(data, stop)


def test_full_disk_is_reported_with_the_space_needed(data, tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"
    # Digests of text that has settled are cached in one large file.
    limited += "from bertjax.text import file_caches; file_caches._SETTLED_SECONDS = 1e9\n"
    done = subprocess.run(script(tmp_path, data, 99, limited), capture_output=True, text=True)
    assert done.returncode == 1
    message = done.stderr.strip().splitlines()[-1]
    assert "store-" in message and "(File too large)" in message
    assert "MB are needed there" in message and message.endswith("make room, or set data.root to a larger disk")
    assert not list(Path(data.root).glob("store*.partial/*/"))


@pytest.mark.run
@pytest.mark.long  # the suite simulates a full disk
@pytest.mark.parametrize("workers", [1, 2])
def test_really_full_disk_is_reported(data, tmp_path, workers):
    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(root)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        with pytest.raises(
            OSError,
            match=r"small/store-.*No space left on device.*0\.\d MB are needed there, but only 0\.0 MB are free",
        ):
            prepare(changed(data, root=str(root), workers=workers))
        assert list(root.glob("store*.partial/unit-*.json"))
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def test_whole_fingerprint_is_compared(data):
    target = prepare(data)
    manifest = json.loads((target / "manifest.json").read_text())
    manifest["provenance"]["inputs"] = manifest["provenance"]["inputs"][:12] + "0" * 52
    manifest["provenance_sha256"] = json_sha256(manifest["provenance"])
    (target / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"was made from other inputs .*; delete it"):
        prepare(data)


def test_accents_with_meaning_are_reported(data, tmp_path):
    (tmp_path / "hi.txt").write_text("नमस्ते दुनिया, यह हिन्दी है। " * 50)
    hindi = changed(data, sources=(*data.sources, f"text:{tmp_path}/hi.txt"))
    with pytest.warns(UserWarning, match="strip_accents=True changes .*नमस्ते becomes"):
        prepare(changed(hindi, vocab="", vocab_size=60))


@pytest.mark.filterwarnings("ignore:data.strip_accents", "ignore:.*of the tokens are")
def test_stripped_accents_note_is_stored(data, tmp_path):
    (tmp_path / "de.txt").write_text("Wir gehen über die Brücke für Fußgänger. " * 50)
    german = changed(data, sources=(*data.sources, f"text:{tmp_path}/de.txt"))
    store = TokenStore.open(prepare(german))
    assert [note for note in reading_notes(store.manifest) if "data.strip_accents=True changes" in note]
    accented = TokenStore.open(prepare(changed(german, strip_accents=False)))
    assert not [note for note in reading_notes(accented.manifest) if "accents" in note]


def test_unknown_tokens_warning_advises_a_larger_vocabulary():
    manifest = {"provenance": {"unknown_tokens": 69}, "splits": {"train": {"tokens": 900}, "held_out": {"tokens": 100}}}
    with pytest.warns(UserWarning, match=r"^6.9% of the tokens are \[UNK\]: raise --data.vocab-size, which is \d+$"):
        module._warn_of_unknown(manifest, WordPiece(VOCAB, TextRules(True, True)), DataConfig(vocab_size=len(VOCAB)))


def test_unfitting_vocabulary_is_reported(data, tmp_path):
    (tmp_path / "zh.txt").write_text("中文句子。" * 500)
    chinese = changed(data, sources=(*data.sources, f"text:{tmp_path}/zh.txt"))
    with pytest.warns(UserWarning, match=r"of the tokens are \[UNK\]: the vocabulary .* does not fit this text"):
        prepare(chinese)


def test_progress_runs_from_zero_to_total(data):
    reports = []
    prepare(changed(data, vocab="", vocab_size=60), lambda *values: reports.append(values))
    assert list(dict.fromkeys(what for what, _, _ in reports)) == [
        "counting words, bytes",
        "training the vocabulary, entries",
        "preparing text, bytes",
    ]
    for job in dict.fromkeys(what for what, _, _ in reports):
        done = [d for what, d, _ in reports if what == job]
        assert done == sorted(done) and done[-1] == reports[[w for w, _, _ in reports].index(job)][2]
