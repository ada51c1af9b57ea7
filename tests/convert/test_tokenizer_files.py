"""Tokenizer files of other systems give transformers' ids, or are refused."""

from __future__ import annotations

import io
import itertools
import json
import lzma
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from family_models import tokenizer_of
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

from bertjax.convert.huggingface.tokenizer_files import read_tokenizer, tokenizer_texts
from bertjax.tokenization.huggingface import provide_sentencepiece_messages
from bertjax.tokenization.sentencepiece import SentencePiece
from bertjax.tokenization.tokenizer import TextRules, Tokenizer

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'bertjax[test]'")
provide_sentencepiece_messages()
TEXT = "It opened in 1877, the Naïve Museum."


def write_vocabulary(folder: Path, family: str, config: dict[str, Any], tokenizer: Tokenizer | None = None) -> Path:
    """Write a family's vocabulary files with a `tokenizer_config.json` but without `tokenizer.json`."""
    folder.mkdir(exist_ok=True)
    for name, content in (tokenizer or tokenizer_of(family)).files.items():
        (folder / name).write_bytes(content)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    return folder


def add_tokenizer_json(folder: Path, family: str, **parts: Any) -> Path:
    """Add our exported `tokenizer.json` with some parts replaced; `model` replaces keys of its model."""
    whole = json.loads(tokenizer_texts(tokenizer_of(family), 64, family)["tokenizer.json"])
    model = whole["model"] | parts.pop("model", {})
    (folder / "tokenizer.json").write_text(json.dumps(whole | parts | {"model": model}))
    return folder


def ids(tokenizer: Tokenizer, text: str = TEXT) -> list[int]:
    return tokenizer.encode([text])[0].tolist()


def their_ids(folder: Path, text: str = TEXT) -> list[int]:
    return transformers.AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False, verbose=False)[
        "input_ids"
    ]


@pytest.mark.parametrize("has_whole_file", [pytest.param(False, marks=pytest.mark.long), True])
def test_published_albert_has_transformers_ids(real_data: Path, tmp_path: Path, has_whole_file: bool) -> None:
    write_vocabulary(tmp_path, "albert", {})
    (tmp_path / "spiece.model").write_bytes((real_data / "vocab/albert-base-v1/spiece.model").read_bytes())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    if has_whole_file:
        theirs.save_pretrained(tmp_path)
    read = read_tokenizer(tmp_path, "albert")
    with lzma.open(real_data / "wikipedia_en" / "AA_00.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in itertools.islice(file, 600) if len(line) > 50]
    assert [ids(read, line) for line in lines] == theirs(lines, add_special_tokens=False, verbose=False)["input_ids"]
    again = write_export(read, tmp_path / "again", "albert")
    assert read_tokenizer(again, "albert").fingerprint == read.fingerprint


def write_export(tokenizer: Tokenizer, folder: Path, family: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in tokenizer_texts(tokenizer, 64, family).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert"])
def test_export_and_import_keep_the_fingerprint(family: str, tmp_path: Path) -> None:
    ours = tokenizer_of(family)
    folder = write_export(ours, tmp_path, family)
    assert read_tokenizer(folder, family).fingerprint == ours.fingerprint
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert ids(read_tokenizer(tmp_path / "again", family)) == ids(ours) == their_ids(folder)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("how", ["tokenizer.json", "added_tokens.json", "added_tokens_decoder"])
def test_tokens_beyond_the_vocabulary_have_one_id(family: str, how: str, tmp_path: Path) -> None:
    added = tokenizer_of(family).vocab_size
    token = {"content": "covid", "lstrip": False, "rstrip": False, "normalized": True, "single_word": False}
    config = {"added_tokens_decoder": {str(added): token | {"special": False}}} if how.endswith("decoder") else {}
    write_vocabulary(tmp_path, family, config)
    if how == "tokenizer.json":
        whole = tokenizers.Tokenizer.from_str(tokenizer_texts(tokenizer_of(family), 64, family)[how])
        assert whole.add_tokens(["covid"]) == 1
        whole.save(str(tmp_path / how))
    elif how == "added_tokens.json":
        (tmp_path / how).write_text(json.dumps({"covid": added}))
    read = read_tokenizer(tmp_path, family)
    assert ids(read, "the covid sat") == their_ids(tmp_path, "the covid sat")
    assert (added in ids(read, "the covid sat")) == (read.vocab_size > added)


@pytest.mark.parametrize("config", [{}, {"cls_token": {"content": "[CLS]", "__type": "AddedToken"}}])
def test_deberta_config_may_lack_the_first_token(config: dict[str, Any], tmp_path: Path) -> None:
    read = read_tokenizer(write_vocabulary(tmp_path, "deberta", config), "deberta")
    assert read.tokens[read.cls_id] == "[CLS]"


@pytest.mark.parametrize("key", ["continuing_subword_prefix", "end_of_word_suffix"])
def test_byte_pieces_with_prefix_or_suffix_are_refused(key: str, tmp_path: Path) -> None:
    """With the prefix, `tokenizers` would end the process."""
    with pytest.raises(ValueError, match=f"model.{key} is 'x'"):
        read_tokenizer(add_tokenizer_json(tmp_path, "modernbert", model={key: "x"}), "modernbert")


def test_wordpiece_with_another_prefix_has_transformers_ids(tmp_path: Path) -> None:
    folder = add_tokenizer_json(
        write_vocabulary(tmp_path, "bert", {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}),
        "bert",
        model={"continuing_subword_prefix": "@@"},
    )
    assert ids(read_tokenizer(folder, "bert")) == their_ids(folder)


def test_export_drops_truncation_and_padding(tmp_path: Path) -> None:
    parts = {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
    }
    read = read_tokenizer(add_tokenizer_json(tmp_path, "modernbert", **parts), "modernbert")
    backend = tokenizers.Tokenizer.from_str(tokenizer_texts(read, 64, "modernbert")["tokenizer.json"])
    assert backend.encode(TEXT, add_special_tokens=False).ids == ids(read)


def test_exports_do_not_match_control_pieces(tmp_path: Path) -> None:
    """A model with the library's own <s> and </s> beside [CLS] and [SEP]."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat; a < s > b"] * 20), model_writer=model, vocab_size=60,
        hard_vocab_limit=False, pad_id=3, control_symbols=["[CLS]", "[SEP]", "[MASK]"], minloglevel=2,
    )  # fmt: skip
    ours = SentencePiece(model.getvalue(), TextRules(lowercase=False, strip_accents=False))
    again = read_tokenizer(write_export(ours, tmp_path, "albert"), "albert")
    text = "a <s> b [CLS]"
    assert ids(again, text) == ids(ours, text) and again.fingerprint == ours.fingerprint
    library = SentencePieceProcessor(model_proto=model.getvalue())
    assert ids(ours, text) == library.encode(text)
