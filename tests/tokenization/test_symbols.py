"""Vocabularies of symbols: named and trained alphabets, ESM-2's ids, and the letter table against the artefact."""

import json
import random

import numpy as np
import pytest

from bertjax.tokenization.huggingface import read_folder
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import count_for, parse_kind, train_tokenizer

RULES = TextRules(lowercase=False, strip_accents=False)


def make(written: str) -> Tokenizer:
    """Make the tokenizer of a `data.tokenizer` that needs no training."""
    kind, argument = parse_kind(written)
    tokenizer = kind.build(argument)
    assert tokenizer is not None
    return tokenizer


def test_esm2_has_the_ids_of_transformers(tmp_path):
    from transformers import EsmTokenizer

    ours = make("characters:esm2")
    (tmp_path / "vocab.txt").write_text("\n".join(ours.tokens))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "EsmTokenizer"}))
    theirs, imported = EsmTokenizer.from_pretrained(tmp_path), read_folder(tmp_path)
    published = [*("<cls>", "<pad>", "<eos>", "<unk>"), *"LAGVSERTIDPKQNFYMHWCXBUZO.-", *("<null_1>", "<mask>")]
    assert ours.tokens == published and len(published) == 33
    for text in ("MKTLLXBZUO-.", "M<mask>K", "MK T"):
        assert theirs(text)["input_ids"] == ours.backend.encode(text).ids == imported.backend.encode(text).ids
    assert theirs("MKjlTé")["input_ids"] == imported.backend.encode("MKjlTé").ids  # a run of letters is one [UNK]
    assert ours.encode(["MKjlT"])[0].tolist() == [20, 15, 3, 3, 11]  # here each letter is one [UNK]


def test_table_encodes_like_the_artefact():
    draw = random.Random(0)
    for ours in (make("characters:esm2"), make("characters:ACGTé\U0001f9ec")):
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
    ours = make("characters:esm2")
    for name, content in ours.files.items():
        (tmp_path / name).write_bytes(content)
    again = load_tokenizer(tmp_path, TextRules(True, True))
    assert (again.fingerprint, again.special, again.rules) == (ours.fingerprint, ours.special, ours.rules)
    assert ours.decode(ours.encode(["MKTLL"])[0]) == "MKTLL"
    assert np.array_equal(again.encode(["MKTLL"])[0], ours.encode(["MKTLL"])[0])


def test_trained_alphabet_has_the_letters_of_the_text():
    counts = count_for("characters", ["TTAC A", "TAxx"], RULES)
    trained = train_tokenizer("characters", counts, 100, RULES)
    assert trained.tokens == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "A", "C", "T", "x"]
    assert train_tokenizer("characters", counts, 7, RULES).tokens[5:] == ["A", "T"]  # the most frequent
    with pytest.raises(ValueError, match=r"data\.vocab_size=5 is too small: there are 5 special tokens and 4 symbols"):
        train_tokenizer("characters", counts, 5, RULES)


def encode_tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.tokens[number] for number in tokenizer.encode([text])[0]]


def test_kmers_leave_remaining_letters_as_tokens():
    ours = make("kmers:3")
    assert ours.vocab_size == 5 + 64 + 5
    assert encode_tokens(ours, "ACGTAC GT") == ["ACG", "TAC", "G", "T"]
    assert encode_tokens(ours, "ACNGTAT*C") == ["A", "C", "N", "GTA", "T", "[UNK]", "C"]
    assert ours.decode(ours.encode(["ACGTACG"])[0]) == "ACGTACG"
    assert ours.offsets("ACG TA").tolist() == [[0, 3], [4, 5], [5, 6]]


def test_overlapping_kmers_match_spaced_kmers():
    ours, draw = make("kmers:4:1"), random.Random(1)
    assert ours.vocab_size == 5 + 256 and make("kmers:4:4").vocab_size == make("kmers:4").vocab_size
    texts = ["".join(draw.choices("ACGTACGTN\n", k=size)) for size in (0, 1, 3, 4, 5, 50)]
    ids, lengths = ours.encode(texts)
    expected = []
    for text in texts:
        letters = text.replace("\n", "")
        spaced = " ".join(letters[at : at + 4] for at in range(max(len(letters) - 3, min(len(letters), 1))))
        expected.append(ours.backend.encode(spaced, add_special_tokens=False).ids)
    assert ids.tolist() == [number for one in expected for number in one] and lengths.tolist() == [*map(len, expected)]
    assert ours.offsets("AC GTA").tolist() == [[0, 5], [1, 6]]


def test_smiles_are_split_into_atoms_and_bonds():
    text = "CC(=O)Nc1ccc(Cl)c[nH]1.Br[C@@H](F)%12C#N"
    counts = count_for("regex:smiles", [text], RULES)
    ours = train_tokenizer("regex:smiles", counts, 100, RULES)
    symbols = ["C", "C", "(", "=", "O", ")", "N", "c", "1", "c", "c", "c", "(", "Cl", ")", "c", "[nH]", "1", "."]
    symbols += ["Br", "[C@@H]", "(", "F", ")", "%12", "C", "#", "N"]
    assert encode_tokens(ours, text) == symbols and ours.tokens[5:] == sorted({*symbols})
    assert encode_tokens(ours, "C[Na+]") == ["C", "[UNK]"] and ours.decode(ours.encode([text])[0]) == text
    codons = train_tokenizer("regex:[ACGU]{3}", count_for("regex:[ACGU]{3}", ["ACGUUUAC"], RULES), 100, RULES)
    assert encode_tokens(codons, "ACGUUUAC") == ["ACG", "UUU", "AC"]


def test_sequence_bpe_has_no_word_borders(tmp_path):
    draw = random.Random(2)
    texts = ["".join(draw.choice(["GATTACA", "CCCGGG", "T"]) for _ in range(40)) for _ in range(30)]
    counts = count_for("sequence_bpe", texts, RULES)
    ours = train_tokenizer("sequence_bpe", counts, 40, RULES)
    assert ours.vocab_size == 40 and ours.kind == "symbols" and not ours.is_continuation.any()
    assert any("GATTACA" in token for token in ours.tokens)
    tokens = encode_tokens(ours, texts[0])
    assert "".join(tokens) == texts[0] and len(tokens) < len(texts[0]) / 3
    assert encode_tokens(ours, "GAT TACA") == encode_tokens(ours, "GAT") + encode_tokens(ours, "TACA")
    assert ours.decode(ours.encode([texts[0]])[0]) == texts[0]
    for name, content in ours.files.items():
        (tmp_path / name).write_bytes(content)
    assert load_tokenizer(tmp_path, RULES).fingerprint == ours.fingerprint


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            "character",
            r"unknown kind 'character'; did you mean 'characters'\? kinds: wordpiece, .*characters\[:ALPHABET",
        ),
        ("wordpiece:3", "wordpiece takes no argument"),
        ("characters:esm3", "unknown alphabet; choose from esm2, dna"),
        ("characters:ACGA", "a letter is repeated"),
        ("kmers:9", "write kmers:K, with K from 2 to 8, or kmers:K:1"),
        ("kmers:6:2", "write kmers:K"),
        ("kmers", "write kmers:K"),
        ("regex", "write a pattern, or a name: smiles"),
        ("regex:[", "not a valid Oniguruma pattern"),
    ],
)
def test_invalid_kinds_are_refused(written, message):
    with pytest.raises(ValueError, match=message):
        parse_kind(written)
