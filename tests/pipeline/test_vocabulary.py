"""The vocabulary of a run: from a folder in Hugging Face's layout, or from the model that it starts from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from exported_models import trained_model

from bertjax.config import Config, DataConfig
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import write_run
from bertjax.pipeline.vocabulary import vocabulary_line, with_vocabulary
from bertjax.run.checkpoint import DIRECTORY
from bertjax.text.extended_vocabulary import extend_vocabulary
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.text.trained_vocabulary import load_vocabulary, prepare_vocabulary
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

CASED = TextRules(lowercase=False, strip_accents=False)
WORDS = ("The", "the", "museum", "opened", ".", "##s")


@pytest.fixture
def model(tmp_path: Path):
    return trained_model(tmp_path / "run", WordPiece([*SPECIAL_TOKENS, *WORDS], CASED))


@pytest.fixture
def folder(model, tmp_path: Path) -> Path:
    return Path(export_huggingface(model, tmp_path / "exported"))


def make_data_config(tmp_path: Path, **changes) -> DataConfig:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join("The museums opened.\n" * n + "the museum opened." for n in range(1, 40)))
    return DataConfig(sources=(f"lines:{text}",), root=str(tmp_path / "data"), workers=1, held_out=0.2, **changes)


def test_prepare_uses_the_tokenizer_of_a_folder(folder: Path, model, tmp_path: Path) -> None:
    data = make_data_config(tmp_path, vocab=f"hf:{folder}")
    path = prepare_vocabulary(data)
    assert path.name == "tokenizer.json" and path.parent.parent == tmp_path / "data"
    store = TokenStore.open(prepare(data))
    assert store.tokenizer().fingerprint == model.tokenizer.fingerprint
    view = store.split("train")
    ids = {model.tokenizer.tokens[number] for number in view.tokens([0], [view.num_tokens])}
    assert ids == {*WORDS}, "a tokenizer.json has its own rules, whatever data.lowercase is"


def test_with_vocabulary_takes_rules_from_an_artefact(folder: Path, tmp_path: Path) -> None:
    filled = with_vocabulary(Config(data=make_data_config(tmp_path, vocab=f"hf:{folder}", lowercase=True))).data
    assert (filled.tokenizer, filled.lowercase, filled.strip_accents) == ("wordpiece", False, False)
    assert vocabulary_line(filled) == f"vocabulary: hf:{folder} (lower case off, accents kept)"


@pytest.mark.parametrize("kind", ["hf", "run", "checkpoint"])
def test_vocabulary_defaults_to_that_of_init_from(kind: str, folder: Path, model, tmp_path: Path) -> None:
    write_run(model)
    source = {"hf": f"hf:{folder}", "run": str(model.directory), "checkpoint": f"{model.directory}/checkpoints/0"}[kind]
    config = Config(init_from=source, data=make_data_config(tmp_path))
    data = with_vocabulary(config).data
    assert load_vocabulary(data.vocab, TextRules.of(data)).fingerprint == model.tokenizer.fingerprint
    assert not data.lowercase
    named = replace(config, data=replace(config.data, vocab=f"{model.directory}/vocab.txt"))
    assert with_vocabulary(named) == named, "an explicit vocabulary stays"


def test_vocabulary_defaults_to_that_of_a_tf1_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    data = with_vocabulary(Config(init_from=f"tf1:{tmp_path}", data=make_data_config(tmp_path))).data
    assert data.vocab == str(tmp_path / "vocab.txt")
    assert not data.lowercase and not data.strip_accents, "a token has a capital letter"


def test_resumed_run_keeps_its_vocabulary(folder: Path, model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the default directory too, and if the newest checkpoint is damaged."""
    monkeypatch.chdir(tmp_path)
    config = Config(name="begun", init_from=f"hf:{folder}", data=make_data_config(tmp_path))
    begun = with_vocabulary(config)
    begun = replace(begun, data=replace(begun.data, vocab="vocab.txt of the first revision"))
    write_run(replace(model, directory=Path(config.directory), config=begun))
    monkeypatch.setattr("bertjax.pipeline.vocabulary.load_vocabulary", lambda vocab, rules: model.tokenizer)
    assert with_vocabulary(config).data == begun.data
    (Path(config.directory) / DIRECTORY / "1").mkdir()
    assert with_vocabulary(config).data == begun.data
    other = replace(config, init_from=str(write_run(model)))
    assert with_vocabulary(other).data.vocab == f"{model.directory}/vocab.txt", "another model has its own vocabulary"


def test_missing_vocabulary_names_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bert-base-uncased: no such file; .* hf:NAME for a tokenizer of the .* Hub"):
        prepare_vocabulary(make_data_config(tmp_path, vocab="bert-base-uncased"))


def test_folder_with_transformers_rules_requires_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    texts = ["The museums opened."]
    assert load_vocabulary(f"hf:{folder}", CASED).encode_sentences(texts)[0].tolist() == [5, 7, 10, 8, 9]
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    with pytest.raises(ValueError, match=r"requires transformers, which is not installed; pip install 'bertjax\[hf\]'"):
        load_vocabulary(f"hf:{folder}", CASED)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *WORDS]) + "\n")
    (tmp_path / "plain" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    plain = load_vocabulary(f"hf:{tmp_path}/plain", CASED)
    assert plain.encode_sentences(texts)[0].tolist() == [5, 7, 10, 8, 9]


def test_extended_artefact_keeps_its_rules(folder: Path, model, tmp_path: Path) -> None:
    text = tmp_path / "new.txt"
    text.write_text("\n\n".join(f"The Louvre opened the Louvre {'museum ' * n}." for n in range(1, 60)))
    data = replace(make_data_config(tmp_path, vocab=f"hf:{folder}"), sources=(f"lines:{text}",))
    extension = extend_vocabulary(data, most=1)
    assert extension.added == ("Louvre",) and extension.path.name == "tokenizer.json"
    extended = load_vocabulary(extension.path, CASED)
    assert extended.tokens == [*model.tokenizer.tokens, "Louvre"]
    assert extended.encode_sentences(["The Louvre museums"])[0].tolist() == [5, len(extended.tokens) - 1, 7, 10]
