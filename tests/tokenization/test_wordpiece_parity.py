"""WordPiece gives the ids of google-research/bert and of transformers' pure-Python tokenizer, except for a table.

Tests a sample; check_wordpiece.py verifies all text and every character.
"""

import unicodedata

import pytest
import reference_wordpiece
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_wordpiece import (
    CHINESE_ELSEWHERE,
    DIFFERENCES,
    EARLIER_CATEGORY,
    GOOGLE,
    LARGEST_EXPANSION,
    LATER_CAPITALS,
    LATER_CATEGORY,
    LATER_NORMALIZED,
    OURS,
    SEPARATORS,
    TRANSFORMERS,
    clean,
    differences,
)
from tiers import long_unless

from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

pytest.importorskip("transformers")

from check_wordpiece import PUBLISHED, SCALARS, SWITCHES, Trial, compare_lines, compare_with_an_alphabet, read_lines

SAMPLED = ("wikipedia_dumps/*.bz2", "pos/*.xz", "wikipedia_zh/*", "wikipedia_ko/*", "wikipedia_en/AB_02*", "qa/*")
SAMPLED += ("books_en/James_Tragic*", "books_en/chesterton-ball*", "vocab/bert-base-multilingual-cased/*")
LISTED = {*LATER_CATEGORY, *EARLIER_CATEGORY, *LATER_NORMALIZED, *LATER_CAPITALS, *map(chr, CHINESE_ELSEWHERE)}
AROUND_LISTED = {ord(character) + step for character in LISTED for step in (-1, 0, 1)}
LETTERS = [
    *sorted(LISTED),
    *"aEéÅΣσςοΟ中豈\U0002f800\ue000\u0378\ufdd0\u0301\u0323\u0345\u1100\u1161가.…¿$'ßİı\u212b\u037e\u226e",
]


def make_trial(folder, characters, lowercase, strip_accents):
    tokens = [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    return Trial(folder / "vocab.txt", lowercase, strip_accents)


@pytest.fixture(scope="module")
def lines(real_data):
    """Evenly spaced lines of each file, of less than 2,000 characters."""
    sample = []
    for path in sorted(path for pattern in SAMPLED for path in real_data.glob(pattern)):
        short = [line for line in read_lines(path) if 0 < len(line) < 2000]
        sample += short[:: len(short) // 16 + 1]
    return sample


# Combinations of the switches without a published vocabulary, which google-research/bert does not support
MIXED = (("bert-base-uncased", True, False), ("bert-base-multilingual-cased", False, True))


@pytest.mark.parametrize(
    ("name", "lowercase", "strip_accents"), long_unless(lambda *cell: cell in MIXED, [*PUBLISHED, *MIXED])
)
def test_real_text(real_data, lines, name, lowercase, strip_accents):
    trial = Trial(real_data / "vocab" / name / "vocab.txt", lowercase, strip_accents)
    result = trial.compare(lines)
    assert not result.wrong
    assert result.texts > 400
    assert result.ids > 15_000
    # google-research/bert strips its tokens, which only affects tokens that cannot match a word.
    assert {token.strip() for token in trial.wordpiece.tokens if token != token.strip()} <= {"", "##"}


@pytest.mark.parametrize(
    ("lowercase", "strip_accents"), long_unless(lambda lowercase, strip: lowercase == strip, SWITCHES)
)
def test_characters_of_all_kinds(lowercase, strip_accents):
    chosen = [p for p in SCALARS if p < 0x400 or p % 4093 == 0 or p in AROUND_LISTED or _begins_a_category(p)]
    assert len(chosen) > 4000
    result = compare_with_an_alphabet(chosen, lowercase, strip_accents)
    assert not result.wrong
    # Every row of the table about single characters occurs.
    expected = {
        "categories",
        *(["decompositions"] if strip_accents else ["NFC"]),
        *(["final sigma"] if lowercase else []),
    }
    assert set(result.google) | set(result.transformers) >= expected | {"private use", "unassigned", "Chinese"}


def _begins_a_category(place):
    return place == 0 or unicodedata.category(chr(place)) != unicodedata.category(chr(place - 1))


@settings(max_examples=100)
@given(
    st.lists(st.one_of(st.sampled_from(LETTERS), st.sampled_from(" aE\u0301中.\u200d")), max_size=12).map("".join),
    st.data(),
)
def test_any_text(trials, text, data):
    assert not data.draw(st.sampled_from(trials)).compare([text]).wrong


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    forms = {
        unicodedata.normalize(form, c)
        for letter in LETTERS
        for c in (letter, letter.lower())
        for form in ("NFC", "NFD")
    }
    known = sorted(set("".join(forms)))
    return [make_trial(tmp_path_factory.mktemp("vocabulary"), known, *switches) for switches in SWITCHES]


def test_white_space_separates_texts():
    """check_wordpiece.py relies on this when it gives each word to the references only once."""
    characters = [chr(place) for place in SCALARS]
    white = [c for c in characters if c.isspace() or unicodedata.category(c) == "Zs"]
    for rules in (GOOGLE, TRANSFORMERS, OURS):
        assert {c for c in white if clean(c, rules).isspace()} == SEPARATORS
        assert all(clean(c, rules) == "" for c in white if c not in SEPARATORS)
    for character in characters:
        parts = unicodedata.normalize("NFD", character)
        assert SEPARATORS.isdisjoint(parts) or character in SEPARATORS
        assert len(unicodedata.normalize("NFD", character.lower())) <= LARGEST_EXPANSION


# (row of the table, text, lowercase, strip_accents, tokens by google-research/bert, by BertTokenizerLegacy, by us)
EXAMPLES = [
    ("longest word", "a" * 201, False, False, ["[UNK]"], ["[UNK]"], ["[UNK]"]),
    ("longest word", "a" * 200, False, False, ["a", *["##a"] * 199], ["[UNK]"], ["a", *["##a"] * 199]),
    ("longest word", "a" * 101, False, False, ["a", *["##a"] * 100], ["[UNK]"], ["a", *["##a"] * 100]),
    ("longest word", "a" * 100, False, False, *[["a", *["##a"] * 99]] * 3),
    ("private use", "a\ue000b", False, False, ["a", "##\ue000", "##b"], ["a", "##b"], ["a", "##b"]),
    ("unassigned", "a\ufdd0b", False, False, ["a", "##\ufdd0", "##b"], ["a", "##b"], ["a", "##\ufdd0", "##b"]),
    ("NFC", "e\u0301", False, False, ["e", "##\u0301"], ["é"], ["e", "##\u0301"]),
    ("NFC", "e\u0301", True, True, ["e"], ["e"], ["e"]),
    ("Chinese", "a\U0002b820", False, False, ["a", "\U0002b820"], ["a", "\U0002b820"], ["a", "##\U0002b820"]),
    ("final sigma", "ΟΣ", True, True, ["ο", "##ς"], ["ο", "##ς"], ["ο", "##σ"]),
    ("final sigma", "ΟΣ", False, False, *[["Ο", "##Σ"]] * 3),
    ("categories", "a\u2e43b", False, False, ["a", "\u2e43", "b"], ["a", "\u2e43", "b"], ["a", "##\u2e43", "##b"]),
    ("categories", "a\u08d4b", True, True, ["a", "##b"], ["a", "##b"], ["a", "##\u08d4", "##b"]),
    ("categories", "a\u08e2b", False, False, ["a", "##b"], ["a", "##b"], ["a", "##\u08e2", "##b"]),
    ("categories", "a\u166db", False, False, ["a", "##\u166d", "##b"], ["a", "##\u166d", "##b"], ["a", "\u166d", "b"]),
    ("decompositions", "\U00011938", True, True, *[["\U00011935", "##\U00011930"]] * 2, ["\U00011938"]),
]  # fmt: skip
if "\U00016ea0".lower() == "\U00016ea0":  # Python is older than Unicode 17.0
    EXAMPLES.append(("capitals", "\U00016ea0", True, True, ["\U00016ea0"], [], ["\U00016ebb"]))  # [] as unassigned


@pytest.mark.parametrize(("row", "text", "lowercase", "strip_accents", "google", "transformers", "ours"), EXAMPLES)
def test_table(tmp_path, monkeypatch, row, text, lowercase, strip_accents, google, transformers, ours):
    characters = sorted(
        {character for character in "".join([text, *google, *transformers, *ours]) if character not in "#[]"}
    )
    trial = make_trial(tmp_path, characters, lowercase, strip_accents)
    tokens = [
        [trial.wordpiece.tokens[i] for i in ids(text)] for ids in (trial.google.ids, trial.legacy, trial.ours.ids)
    ]
    assert tokens == [google, transformers, ours]
    assert not trial.compare([text], every_row_shows=True).wrong
    rows = [differences(text, lowercase, strip_accents, rules) for rules in (GOOGLE, TRANSFORMERS)]
    assert [row in each for each in rows] == [google != ours, transformers != ours]
    # Without its row, a difference is a failure.
    monkeypatch.setattr(reference_wordpiece, "DIFFERENCES", ())
    assert bool(trial.compare([text]).wrong) == (not google == transformers == ours)


def test_every_row_has_an_example():
    assert {row.name for row in DIFFERENCES} - {example[0] for example in EXAMPLES} <= {"capitals"}


def test_comparison_detects_other_ids(tmp_path):
    trial = make_trial(tmp_path, "aeéx\u0301", True, True)
    assert not trial.compare(["É x"]).wrong
    known = {
        word: ids.tobytes() for word, ids in zip(["É", "x"], trial.wordpiece.encode_sentences(["É", "x"]), strict=True)
    }
    assert compare_lines(trial.wordpiece, ["É x", "x", ""], known).wrong == []
    trial.wordpiece = WordPiece(trial.wordpiece.tokens, TextRules(True, False))
    assert {text.split(":")[0] for text in trial.compare(["É x", "x"]).wrong} == {"'É x'"}
    assert len(compare_lines(trial.wordpiece, ["É x", "x", ""], known).wrong) == 1
    known["É"] = known["É"] * 2
    assert len(compare_lines(trial.wordpiece, ["x É"], known).wrong) == 1


def test_special_tokens_in_text_are_plain_text(tmp_path):
    trial = make_trial(tmp_path, "a[]msk", True, True)
    mask = trial.wordpiece.mask_id
    plain = [trial.wordpiece.tokens.index(token) for token in ("[", "m", "##a", "##s", "##k", "]")]
    assert trial.google.ids("a[MASK]") == trial.wordpiece.encode(["a[MASK]"])[0].tolist() == [5, *plain]
    assert trial.legacy("a[MASK]") == [5, *plain]
    assert trial._legacy.encode("a[MASK]", add_special_tokens=False) == [5, mask]
    assert trial.wordpiece.backend.encode("a[MASK]", add_special_tokens=False).ids == [5, mask]


def test_lone_surrogate_is_refused(tmp_path):
    trial = make_trial(tmp_path, "ab", False, False)
    assert (trial.google.ids("a\ud800b"), trial.legacy("a\ud800b")) == ([trial.wordpiece.unk_id], [5, 8])
    with pytest.raises(ValueError, match="lone surrogate"):
        trial.wordpiece.encode(["a\ud800b"])
