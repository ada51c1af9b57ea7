"""The vocabulary of a run: trained only on training documents, for every tokenizer kind; changed files are refused."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_corpus import changed, content, generated_text

from bertjax.config import DataConfig
from bertjax.text import trained_vocabulary
from bertjax.text.corpus import Corpus, draws
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.text.trained_vocabulary import prepare_vocabulary
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import KINDS
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece


def test_vocabulary_is_trained_by_default(data):
    vocab = prepare_vocabulary(changed(data, vocab="", vocab_size=50))
    assert vocab.name == "vocab.txt" and vocab.parent.parent == Path(data.root)
    trained = WordPiece.load(vocab, TextRules(True, True))
    assert trained.tokens[:5] == list(SPECIAL_TOKENS) and trained.vocab_size == 50
    store = TokenStore.open(prepare(changed(data, vocab="", vocab_size=50)))
    assert store.tokenizer().tokens == trained.tokens
    assert prepare_vocabulary(data) == Path(data.vocab)


@pytest.mark.parametrize(
    ("kind", "name", "size"),
    [("unigram", "spiece.model", 60), ("bpe", "spiece.model", 60), ("byte_bpe", "vocab.json", 300)],
)
def test_vocabulary_is_trained_for_every_tokenizer_kind(data, kind, name, size):
    config = changed(data, vocab="", tokenizer=kind, vocab_size=size)
    vocab = prepare_vocabulary(config)
    assert vocab.name == name and prepare_vocabulary(config) == vocab
    trained = load_tokenizer(vocab, TextRules(True, True))
    target = prepare(config)
    store = TokenStore.open(target)
    assert store.tokenizer().fingerprint == trained.fingerprint
    assert store.special == trained.special and (target / name).read_bytes() == trained.files[name]
    view = store.split("train")
    texts = {generated_text(n) for n in range(40)}
    first = trained.decode(view.tokens(view.sentence_offsets[:1], np.diff(view.sentence_offsets[:2])))
    assert any(first.lower() in text.lower() for text in texts)
    assert content(prepare(changed(config, vocab=str(vocab), workers=1))) == content(target)
    vocab.write_bytes(vocab.read_bytes() + b" ")
    with pytest.raises(ValueError, match=r"was changed after it was made; delete the folder"):
        prepare_vocabulary(config)


def test_names_of_special_tokens_change_the_store(data):
    """RoBERTa's and DeBERTa's recipes have the same kind and size, but different names."""
    config = changed(data, vocab="", tokenizer="byte_bpe", vocab_size=300)
    roberta, deberta = prepare_vocabulary(config), prepare_vocabulary(changed(config, special_tokens="[CLS]"))
    assert roberta.parent != deberta.parent
    assert "<s>" in json.loads(roberta.read_text()) and "[CLS]" in json.loads(deberta.read_text())


def test_vocabulary_ignores_held_out_documents(data, tmp_path):
    texts = [f"{generated_text(n)} Qqq{'x' * n}zzz." for n in range(40)]
    for number, text in enumerate(texts):
        (tmp_path / "text" / f"{number:02}.txt").write_text(text)
    counts = {}
    for unit in Corpus.of(data).units:
        counts |= trained_vocabulary._count_unit(unit, data, 1.0)
    trained_on = {n for n in range(40) if f"qqq{'x' * n}zzz" in counts}
    evaluated = {n for n, text in enumerate(texts) if draws(text)[0] < data.held_out}
    assert trained_on == set(range(40)) - evaluated


def test_large_text_is_sampled(data, monkeypatch):
    everything = prepare_vocabulary(changed(data, vocab="", vocab_size=70))
    text_bytes = Corpus.of(data).text_bytes
    monkeypatch.setitem(KINDS.own, "wordpiece", replace(KINDS["wordpiece"], text_bytes=text_bytes // 2))
    # The size is a constant of the program and not part of the fingerprint.
    shutil.rmtree(everything.parent)
    half = json.loads((prepare_vocabulary(changed(data, vocab="", vocab_size=70)).parent / "made.json").read_text())
    assert half["share_of_documents"] == pytest.approx(0.5, abs=0.01)
    assert 0.25 < half["words"] / sum(len(generated_text(n).split()) for n in range(40)) < 0.6


def test_changed_vocabulary_is_not_used(data):
    config = changed(data, vocab="", vocab_size=70)
    vocab = prepare_vocabulary(config)
    vocab.write_text(vocab.read_text().replace("the", "eht"))
    with pytest.raises(
        ValueError, match=r"vocab\.txt was changed after it was made; delete the folder, or name the file"
    ):
        prepare(config)
    (vocab.parent / "made.json").unlink()
    with pytest.raises(ValueError, match=r"a file is missing or damaged; delete the folder"):
        prepare(config)


def test_unknown_tokens_warning_gives_advice_that_helps(tmp_path):
    """The text has 300 Chinese characters: a vocabulary of 100 has room for some of them, one of 400 for all."""
    characters = [chr(0x4E00 + number) for number in range(300)]
    draw = random.Random(0)
    for number in range(20):
        (tmp_path / f"{number}.txt").write_text("。\n\n".join("".join(draw.sample(characters, 300)) for _ in range(3)))
    data = DataConfig(sources=(f"text:{tmp_path}/*.txt",), root=str(tmp_path / "data"), held_out=0.2, workers=1)
    with pytest.warns(UserWarning, match=r"of the tokens are \[UNK\]: raise --data\.vocab-size, which is 100"):
        prepare(replace(data, vocab_size=100))
    store = TokenStore.open(prepare(replace(data, vocab_size=400)))
    assert store.manifest["provenance"]["unknown_tokens"] == 0
    vocab = str(prepare_vocabulary(replace(data, vocab_size=100)))
    with pytest.warns(UserWarning, match=r"does not fit this text; .* or leave data\.vocab empty to train one"):
        prepare(replace(data, vocab=vocab, root=str(tmp_path / "other")))
