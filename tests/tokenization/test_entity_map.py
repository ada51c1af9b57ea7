"""The entity map applies to whole words that would be [UNK], also in exports, and is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.__main__ import main
from bertjax.config import Config, DataConfig
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer, tokenizer_texts
from bertjax.run.run_directory import describe_run
from bertjax.text.prepare import prepare, require_sources
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.entity_map import FILE
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

TOKENS = [*SPECIAL_TOKENS, *"abc.,", "##a", "##b", "##1", "curie", "ENTITY", "北京", "ab", "-"]
MAP = "Zédé\tcurie\nabc\tENTITY\nαβγ\tcurie\n龘\t北京\nab\tENTITY\nzz\tENTITY\n".encode()
RULES = {mode: TextRules(True, True, mode) for mode in ("words", "characters")}
TOKENIZERS = {mode: WordPiece(TOKENS, rules, entities=MAP) for mode, rules in RULES.items()}


def encode_tokens(tokenizer: WordPiece, text: str) -> list[str]:
    return [tokenizer.tokens[number] for number in tokenizer.encode([text])[0]]


@pytest.mark.parametrize("mode", RULES)
def test_map_applies_just_before_unk(mode: str) -> None:
    tokenizer = TOKENIZERS[mode]
    assert encode_tokens(tokenizer, "ab aba") == ["ab", "ab", "##a"], "pieces of the vocabulary come first"
    assert encode_tokens(tokenizer, "curie entity") == ["curie", *["[UNK]"] * (1 if mode == "words" else 6)]
    assert encode_tokens(tokenizer, "zede ZÉDÉ abc,αβγ.") == ["curie", "curie", "ENTITY", ",", "curie", "."]
    assert encode_tokens(tokenizer, "a龘b 北") == ["a", "北京", "b", "[UNK]"]
    assert "curie" not in encode_tokens(tokenizer, "zedes xzede αβγαβγ"), "only whole words"
    assert set(tokenizer.entities) == {"zede", "abc", "αβγ", "龘", "zz"}, "ab is in the vocabulary"
    assert encode_tokens(WordPiece(TOKENS, RULES[mode]), "zede") != ["curie"]


@pytest.mark.parametrize("mode", RULES)
@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                "zede",
                "ZÉDÉ",
                "abc",
                "αβγ",
                "龘",
                "ab",
                "a",
                "1",
                "x",
                "zz",
                *" .,-«»“”·$_\t\u200b\u0301\u3000\u00a0か北",
            ]
        )
    )
)
def test_exported_tokenizer_gives_the_same_ids(mode: str, parts: list[str]) -> None:
    text, tokenizer = "".join(parts), TOKENIZERS[mode]
    assert tokenizer.encode([text])[0].tolist() == tokenizer.backend.encode(text, add_special_tokens=False).ids


def test_map_is_part_of_the_tokenizer() -> None:
    mapped, plain = TOKENIZERS["words"], WordPiece(TOKENS, RULES["words"])
    other = WordPiece(TOKENS, RULES["words"], entities=MAP + b"qq\tcurie\n")
    assert len({mapped.fingerprint, plain.fingerprint, other.fingerprint}) == 3
    assert plain.files.keys() == {"vocab.txt"} and mapped.files.keys() == {"vocab.txt", FILE}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: ''; a line has a surface form and a token, a tab between"),
        ("zede\tcurie\nzz\n", "line 2: 'zz'; a line has"),
        ("zede\tcurie\tab\n", "line 1: .* a line has"),
        ("zede\tcurie\nzede\tab\n", "line 2: 'zede' already has a line; remove one"),
        ("zede\tmarie\n", "'zede' -> 'marie': the token is special or not in the vocabulary"),
        ("zede\t[MASK]\n", "the token is special or not in the vocabulary"),
        ("zede\t##a\n", "'zede' -> '##a': the token has a space or a punctuation mark; rename it"),
        ("zede zz\tcurie\n", r"the surface form is 2 words, \['zede', 'zz'\]; the map is for single words"),
        ("龘龘\tcurie\n", "the surface form is 2 words"),
        ("\u200b\tcurie\n", "the surface form is 0 words"),
        ("Zede\tcurie\nzédé\tENTITY\n", "another surface form of the word 'zede' has another token"),
    ],
)
def test_bad_map_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(TOKENIZERS["words"].files["vocab.txt"])
    (tmp_path / "map.tsv").write_text(content, encoding="utf-8")
    (tmp_path / "text.txt").write_text("a b c.\n")
    data = DataConfig(
        sources=(f"text:{tmp_path}/text.txt",), vocab=f"{tmp_path}/vocab.txt", root=str(tmp_path / "data")
    )
    with pytest.raises(ValueError, match=rf"data\.entity_map='.*map\.tsv'.*{message}"):
        require_sources(replace(data, entity_map=str(tmp_path / "map.tsv")))


def test_map_is_stored_with_store_run_and_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vocab.txt").write_bytes(TOKENIZERS["words"].files["vocab.txt"])
    (tmp_path / "map.tsv").write_bytes(MAP)
    rng = np.random.default_rng(0)
    words = rng.choice(["a", "b", "zede", "abc", "other"], (60, 12))
    (tmp_path / "text.txt").write_text(
        "".join("\n\n" * (n % 4 == 0) + " ".join(w) + ".\n" for n, w in enumerate(words))
    )
    data = DataConfig(
        sources=(f"lines:{tmp_path}/text.txt",),
        vocab=f"{tmp_path}/vocab.txt",
        entity_map=f"{tmp_path}/map.tsv",
        root=str(tmp_path / "data"),
        held_out=0.3,
        workers=1,
    )
    with pytest.warns(UserWarning, match=r"are \[UNK\]"):
        store = TokenStore.open(prepare(data))
    tokenizer = store.tokenizer()
    assert tokenizer.fingerprint == TOKENIZERS["words"].fingerprint
    view = store.split("train")
    ids = view.tokens(np.array([0]), np.array([view.num_tokens]))
    names = np.array(TOKENS)[ids]
    for word, token in (("zede", "curie"), ("abc", "ENTITY"), ("other", "[UNK]")):
        assert abs(np.count_nonzero(names == token) / view.num_tokens - np.mean(words == word)) < 0.05, word
    assert main(["inspect", str(store.path)]) == 0
    entities = np.count_nonzero((names == "curie") | (names == "ENTITY"))
    assert f"{entities:,}" in next(line for line in capsys.readouterr().out.splitlines() if "of the entity map" in line)
    run = tmp_path / "run"
    run.mkdir()
    describe_run(Config(run_dir=str(run), data=data), tokenizer)
    assert load_tokenizer(run, TextRules.of(data)).fingerprint == tokenizer.fingerprint
    plain = WordPiece(TOKENS, RULES["words"])
    describe_run(Config(run_dir=str(run), data=replace(data, entity_map="")), plain)
    assert load_tokenizer(run, TextRules.of(data)).fingerprint == plain.fingerprint, "the earlier map remains"
    folder = tmp_path / "exported"
    folder.mkdir()
    for name, content in tokenizer_texts(tokenizer, 64, "bert").items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    transformers = pytest.importorskip("transformers")
    texts = ["Zédé, abc other (αβγ)", "a [MASK] zede"]
    again = read_tokenizer(folder, "bert").encode_sentences(texts)
    assert [ids.tolist() for ids in again] == [ids.tolist() for ids in tokenizer.encode_sentences(texts)]
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "Zédé, abc other (αβγ)"
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode([text])[0].tolist()
