"""Vocabularies of symbols: alphabets given and found, ESM-2's ids, and the table of letters against the artefact."""

import json
import random

import numpy as np
import pytest

from bertjax.tokenization.huggingface import read_folder
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import count_for, parse_kind, train_tokenizer

RULES = TextRules(lowercase=False, strip_accents=False)


def given(written: str) -> Tokenizer:
    kind, argument = parse_kind(written)
    tokenizer = kind.given(argument)
    assert tokenizer is not None
    return tokenizer


def test_esm2_has_the_ids_of_transformers(tmp_path):
    from transformers import EsmTokenizer

    ours = given("characters:esm2")
    (tmp_path / "vocab.txt").write_text("\n".join(ours.tokens))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer"}))
    theirs, imported = EsmTokenizer.from_pretrained(tmp_path), read_folder(tmp_path)
    published = [*("<cls>", "<pad>", "<eos>", "<unk>"), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", *("<null_1>", "<mask>")]
    assert ours.tokens == published and len(published) == 33
    for text in ("MKTLLXBZUO-.", "M<mask>K", "MK T"):
        assert theirs(text)["input_ids"] == ours.backend.encode(text).ids == imported.backend.encode(text).ids
    assert theirs("MKjlTé")["input_ids"] == imported.backend.encode("MKjlTé").ids  # a run of letters is one [UNK]
    assert ours.encode(["MKjlT"])[0].tolist() == [20, 15, 3, 3, 11]  # and here each letter is one


def test_table_encodes_like_the_artefact():
    draw = random.Random(0)
    for ours in (given("characters:esm2"), given("characters:ACGTé\U0001f9ec")):
        letters = [*"ACGTLXacgt*-é\U0001f9ec \t\r\n"]
        texts = ["".join(draw.choices(letters, k=size)) for size in (0, 1, 30, 200)] + ["ACGT", " ", ""]
        ids, lengths = ours.encode(texts)
        expected = [ours.encoder.encode(text, add_special_tokens=False) for text in texts]
        assert ids.tolist() == [number for one in expected for number in one.ids]
        assert lengths.tolist() == [len(one.ids) for one in expected]
        for text, one in zip(texts, expected, strict=True):
            assert ours.offsets(text).tolist() == [list(span) for span in one.offsets]
    with pytest.raises(ValueError, match="lone surrogate"):
        ours.encode(["AC\ud800"])
    assert ours.encode(["A\0C"])[0].tolist() == ours.encode(["AC"])[0].tolist()
    assert not ours.is_continuation.any()


def test_files_give_the_same_tokenizer(tmp_path):
    ours = given("characters:esm2")
    for name, content in ours.files.items():
        (tmp_path / name).write_bytes(content)
    again = load_tokenizer(tmp_path, TextRules(True, True))
    assert (again.fingerprint, again.special, again.rules) == (ours.fingerprint, ours.special, ours.rules)
    assert ours.decode(ours.encode(["MKTLL"])[0]) == "MKTLL"
    assert np.array_equal(again.encode(["MKTLL"])[0], ours.encode(["MKTLL"])[0])


def test_found_alphabet_is_what_occurs():
    counts = count_for("characters", ["TTAC A", "TAxx"], RULES)
    made = train_tokenizer("characters", counts, 100, RULES)
    assert made.tokens == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "T", "x"]
    assert train_tokenizer("characters", counts, 7, RULES).tokens[5:] == ["A", "T"]  # the most frequent
    with pytest.raises(ValueError, match=r"data\.vocab_size=5: 4 letters and 5 special tokens; raise it"):
        train_tokenizer("characters", counts, 5, RULES)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "character",
            r"unknown kind 'character'; did you mean 'characters'\? kinds: wordpiece, .*characters\[:ALPHABET",
        ),
        ("wordpiece:3", "wordpiece has nothing after a colon"),
        ("characters:esm3", "no alphabet has that name; choose from esm2, dna"),
        ("characters:ACGA", "a letter is repeated"),
    ],
)
def test_wrong_kinds_are_refused(written, message):
    with pytest.raises(ValueError, match=message):
        parse_kind(written)
