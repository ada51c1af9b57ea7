"""A document read in parts counts as one: it is in one split, and never its own random segment B."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from small_corpus import changed, generated_text

from bertjax.__main__ import main
from bertjax.input.plan import build_plan
from bertjax.storage.progress import no_progress
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.corpus import Corpus
from bertjax.text.documents import describe_counts
from bertjax.text.pool import processes
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS
from bertjax.text.store.writer import ShardWriter
from bertjax.text.trained_vocabulary import count_corpus

NOVELS, SENTENCES, CAP = 8, 120, 1000


@pytest.fixture
def novels(data, tmp_path, monkeypatch):
    """Eight novels, each read in several parts, whose sentences all contain the novel's name."""
    monkeypatch.setattr("bertjax.text.documents.DOCUMENT_CAP", CAP)
    monkeypatch.setattr("bertjax.text.shards._BATCH_CHARACTERS", 2 * CAP)  # parts of one novel in several batches
    vocabulary = (tmp_path / "vocab.txt").read_text().split("\n")
    (tmp_path / "novels.txt").write_text("\n".join([*vocabulary, *(f"novel{n}" for n in range(NOVELS))]))
    (tmp_path / "novels").mkdir()
    for n in range(NOVELS):
        text = "\n\n".join(generated_text(f"{n} {chapter}") for chapter in range(SENTENCES // 12))
        text = text.replace(".", f" novel{n}.")
        assert len(text) > 4 * CAP
        (tmp_path / "novels" / f"{n}.txt").write_text(text)
    sources = (f"text:{tmp_path}/novels/*.txt",)
    return changed(data, sources=sources, vocab=str(tmp_path / "novels.txt"), held_out=0.4)


def novels_of(view, tokens):
    """The names of novels in each document of a split."""
    spelled = np.array(tokens)[view.tokens(view.sentence_offsets[:-1], np.diff(view.sentence_offsets))]
    bounds = view.sentence_offsets[view.document_offsets]
    return [{word for word in spelled[a:b] if word.startswith("novel")} for a, b in itertools.pairwise(bounds)]


def test_every_novel_is_one_document_of_one_split(novels):
    store = TokenStore.open(prepare(novels))
    tokens = store.tokenizer().tokens
    novels_by_split = {split: novels_of(store.split(split), tokens) for split in SPLITS}
    assert all(len(names) == 1 for names in itertools.chain(*novels_by_split.values()))
    train, held_out = (set().union(*novels_by_split[split]) for split in SPLITS)
    assert len(novels_by_split["train"]) == len(train) >= 2 and len(novels_by_split["held_out"]) == len(held_out) >= 2
    assert not train & held_out and len(train | held_out) == NOVELS
    sentences = sum(store.split(split).num_sentences for split in SPLITS)
    assert sentences == NOVELS * SENTENCES  # nothing is lost between the parts of a novel


def test_random_segment_b_is_from_another_novel(novels):
    store = TokenStore.open(prepare(novels))
    view = store.split("train")
    plan = build_plan(
        view.document_offsets, view.sentence_offsets, max_tokens=61, short_sequence_probability=0.1, seed=1, epoch=0
    )
    last = view.tokens(view.sentence_offsets[1:] - 2, np.ones(view.num_sentences, int))  # before the period
    assert all(store.tokenizer().tokens[token].startswith("novel") for token in last)
    a, b = last[plan.a_start], last[plan.b_start]
    assert plan.is_random.sum() > 30 and (~plan.is_random).sum() > 30
    assert (a != b)[plan.is_random].all() and (a == b)[~plan.is_random].all()


def test_vocabulary_is_counted_on_whole_training_novels(novels):
    """Words in any part of a held-out novel are not counted."""
    store = TokenStore.open(prepare(novels))
    tokens = store.tokenizer().tokens
    trained_on = set().union(*novels_of(store.split("train"), tokens))
    (counts,), _ = count_corpus(Corpus.of(novels), novels, no_progress, processes(1))
    assert {word for word in counts if word.startswith("novel")} == trained_on
    assert all(counts[name] == SENTENCES for name in trained_on)


def test_divided_documents_are_reported(novels, capsys):
    note = f"documents of over {CAP:,} characters, read in parts and stored as one: {NOVELS}"
    assert reading_notes(TokenStore.open(prepare(novels)).manifest) == [note]
    keys = {"sources": novels.sources[0], "root": novels.root, "vocab": novels.vocab, "held-out": 0.4, "workers": 1}
    recipe = str(Path(__file__).parents[2] / "configs" / "bert_mini.py")
    assert (
        main(["prepare", recipe, *(word for key, value in keys.items() for word in (f"--data.{key}", str(value)))]) == 0
    )
    assert f"note: {note}\n" in capsys.readouterr().out


def test_every_read_count_has_a_note():
    names = {field.name for field in dataclasses.fields(ReadCounts)} - {
        "documents",
        "characters",
        "bad_records",
        "bad_examples",
    }
    for name in names:
        (note,) = describe_counts(ReadCounts(**{name: 1234}))
        assert note.endswith(": 1,234")
    assert describe_counts(ReadCounts(documents=3, characters=9)) == []


def test_part_without_tokens_joins_no_documents(tmp_path):
    """Writes empty parts at the beginning, inside and at the end of documents, in one call and in several."""
    lengths = np.array([2, 0, 1, 0, 3, 0, 1])
    continues = np.array([False, False, True, False, True, True, False])
    expected = [0, 2, 3, 6, 7]
    for cuts in ([], [2], [3], [4], [1, 4, 5], [1, 2, 3, 4, 5, 6]):
        writer = ShardWriter(tmp_path, "shard", 100)
        for part, goes_on in zip(np.split(lengths, cuts), np.split(continues, cuts), strict=True):
            writer.add(np.arange(part.sum()), np.ones(part.sum(), int), part, goes_on)
        assert writer.finish()["documents"] == 4
        assert np.fromfile(tmp_path / "shard.documents", "<i8").tolist() == expected
