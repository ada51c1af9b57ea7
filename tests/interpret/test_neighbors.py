"""Neighbours of a word, and the sample text for its contexts."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import trained_model
from small_models import make_sample, random_sentences
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.config import DataConfig
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.neighbors import find_neighbors
from bertjax.interpret.sample_text import SENTENCES, sample_text, word_positions
from bertjax.interpret.token_rows import read_row
from bertjax.storage.progress import no_progress
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer

BANKS = [
    "the bank paid money .",
    "they sat on the muddy bank of the river",
    "a museum opened",
    "the river bank was high",
]


def test_neighbors_have_a_vector_per_context(model):
    result = find_neighbors(model, "Bank", make_sample(model.tokenizer, BANKS))
    assert [(c.before, c.word) for c in result.contexts] == [
        ("the", "bank"),
        ("sat on the muddy", "bank"),
        ("the river", "bank"),
    ]
    rows = [read_row(model.tokenizer, [BANKS[n]], 64) for n in (0, 1, 3)]
    hidden = [inside.hidden[-1] for inside in look_inside(model, rows)]
    mean = np.concatenate(hidden).mean(axis=0)
    word = model.tokenizer.tokens.index("bank")
    own = np.stack([one[row.ids == word][0] for one, row in zip(hidden, rows, strict=True)]) - mean
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    np.testing.assert_allclose(result.cosines, own @ own.T, atol=1e-5)
    assert result.cosines[0, 1] < 0.999 and np.diag(result.cosines) == pytest.approx(1)
    # Layer 0 has no context, only positions.
    before_position = find_neighbors(
        model, "bank", make_sample(model.tokenizer, ["the bank .", "a bank ."] * 2), layer=0
    )
    np.testing.assert_allclose(before_position.cosines, 1, atol=1e-5)
    nearest = result.contexts[0].words[0]
    row, one = rows[nearest.context], hidden[nearest.context] - mean
    cosines = one @ own[0] / np.linalg.norm(one, axis=1)
    place = model.tokenizer.tokens.index(nearest.word)
    assert nearest.cosine == pytest.approx(max(cosines[row.ids == place]), abs=1e-5)
    assert "bank" not in [near.word for context in result.contexts for near in context.words]


def test_static_neighbors_use_word_embeddings(model):
    table = np.array(model.params["encoder"]["embeddings"]["word"])
    place = model.tokenizer.tokens.index
    table[place("loan")] = table[place("bank")] + 0.05
    embeddings = model.params["encoder"]["embeddings"] | {"word": jnp.asarray(table)}
    near = replace(model, params=model.params | {"encoder": model.params["encoder"] | {"embeddings": embeddings}})
    result = find_neighbors(near, "bank", make_sample(model.tokenizer, random_sentences(20)))
    assert result.table[0].word == "loan" and result.table[0].cosine > 0.9 and result.pieces == ("bank",)


def test_word_of_several_pieces_is_found_whole(model):
    sample = make_sample(model.tokenizer, ["sweet strawberries .", "fresh straw", "strawberries of a year"])
    result = find_neighbors(model, "strawberries", sample)
    assert result.pieces == ("straw", "##berries") and len(result.contexts) == 2
    assert not find_neighbors(model, "straw", make_sample(model.tokenizer, ["sweet strawberries ."] * 2)).contexts
    with pytest.raises(ValueError, match="has no tokens for it"):
        find_neighbors(model, "北", sample)
    with pytest.raises(ValueError, match="--layer 3: the model has layers 1 to 2"):
        find_neighbors(model, "straw", sample, layer=3)


def test_words_in_scripts_without_spaces_are_examined(tmp_path):
    sentences = ["他在河边走路。", "河水很高，她走了。", "我们去银行。", "the river was high"]
    rules = TextRules(False, False)
    tokenizer = train_tokenizer("unigram", count_for("unigram", sentences * 30, rules), 60, rules)
    model = trained_model(tmp_path / "run", tokenizer)
    result = find_neighbors(model, "走", make_sample(tokenizer, sentences))
    assert [context.word for context in result.contexts] == ["走", "走"]
    assert find_neighbors(model, "river", make_sample(tokenizer, sentences)).contexts[0].before == "the"


def test_contexts_are_spread_over_the_text(model):
    sentences = [f"the bank {'high ' * (n % 9)}." for n in range(100)]
    sample = make_sample(model.tokenizer, sentences)
    assert len(find_neighbors(model, "bank", sample, contexts=5).contexts) == 5
    rows = sample.containing(np.array([model.tokenizer.tokens.index("bank")]), 100, 64, at_once=7)
    assert [len(row) for row in rows] == [5 + n % 9 for n in range(100)]
    assert all(word_positions(np.array([model.tokenizer.tokens.index("bank")]), row).tolist() == [2] for row in rows)


def test_sample_pairs_are_successive_and_reproducible(model):
    sentences = random_sentences(60)
    sample = make_sample(model.tokenizer, sentences)
    pairs = sample.pairs(20, 64)
    whole = [ids.tolist() for ids in model.tokenizer.encode_sentences(sentences)]
    first, end = model.tokenizer.cls_id, model.tokenizer.sep_id
    follow = [[first, *a, end, *b, end] for a, b in itertools.pairwise(whole)]
    assert len(pairs) == 20 and all(row.ids.tolist() in follow for row in pairs)
    assert len({tuple(row.ids.tolist()) for row in pairs}) == 20
    assert [row.ids.tolist() for row in sample.pairs(20, 64)] == [row.ids.tolist() for row in pairs]
    assert all(len(row) <= 20 for row in sample.pairs(20, 20))


def test_sample_text_prefers_file_then_held_out(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("I went to the\nstore. The store was high.\n\nA museum opened.\n")
    of_file = sample_text(model, "text.txt", no_progress)
    assert of_file.origin == "text.txt" and of_file.sentences.num_sentences == 3
    built_in = sample_text(model, None, no_progress)
    assert built_in.sentences.num_sentences == len(SENTENCES) and "the model has no text of its own" in built_in.origin
    with pytest.raises(ValueError, match="no such file"):
        sample_text(model, "nowhere.txt", no_progress)
    (tmp_path / "one.txt").write_text("One sentence.")
    with pytest.raises(ValueError, match="fewer than two sentences"):
        sample_text(model, "one.txt", no_progress)


def test_sample_of_a_file_has_its_tokens(model, tmp_path):
    text = "The store was high. The bank was low. A museum opened. 他在河边。她在河边。 河"
    rules = TextRules(False, False, prefix_space=False)
    bare = train_tokenizer("byte_bpe", count_for("byte_bpe", [text] * 5, rules), 300, rules)
    (tmp_path / "text.txt").write_text(text)
    result = sample_text(replace(model, tokenizer=bare), str(tmp_path / "text.txt"), no_progress).sentences
    assert result.num_sentences == 6
    assert result.ids.tolist() == bare.backend.encode(text, add_special_tokens=False).ids


def test_sample_uses_the_run_store(model, tmp_path, monkeypatch):
    run = replace(model, directory=tmp_path / "run", config=replace(model.config, data=DataConfig(root=str(tmp_path))))
    (run.directory / "checkpoints").mkdir(parents=True)
    encoded = [ids.tolist() for ids in model.tokenizer.encode_sentences(random_sentences(9))]
    ours = write_store(tmp_path / "store-ours", {"held_out": [encoded], "train": [encoded[:2]]}, model.tokenizer)
    write_store(tmp_path / "store-a", {"held_out": [encoded[:3]], "train": [encoded]}, model.tokenizer)
    (tmp_path / "store-damaged").mkdir()
    (tmp_path / "store-damaged" / "manifest.json").write_text("{")
    fingerprint = json.loads((ours / "manifest.json").read_text())["fingerprint"]
    monkeypatch.setattr("bertjax.interpret.sample_text.read_metadata", lambda _: {"data_fingerprint": fingerprint})
    result = sample_text(run, None, no_progress)
    assert result.origin == "the run's held-out text" and result.sentences.num_sentences == 9
    monkeypatch.setattr("bertjax.interpret.sample_text.read_metadata", lambda _: {"data_fingerprint": "another"})
    assert f"no token store of the run is below {tmp_path}" in sample_text(run, None, no_progress).origin


def test_zero_contexts_are_rejected(capsys):
    assert main(["neighbors", "nowhere", "bank", "--contexts", "0"]) == 1
    assert "--contexts 0: give 1 or more" in capsys.readouterr().err
