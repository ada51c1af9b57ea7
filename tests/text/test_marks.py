"""Which marks carry meaning, by script."""

import warnings

import pytest

from bertjax.text.marks import lost_marks, warn_of_stripped_accents
from bertjax.text.sources.source import SourceFile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain English, café, naïve, Ångström, Καλημέρα", {}),
        ("cafe\u0301 ❤\ufe0f 한국어 中文", {}),
        ("नमस्ते", {"DEVANAGARI": 2}),  # virama and vowel sign E; the others are spacing marks
        ("ที่นี่", {"THAI": 4}),
        ("أهلاً", {"ARABIC": 2}),  # hamza above, and fathatan
        ("мой ёж", {"CYRILLIC": 2}),
        ("がんばる", {"HIRAGANA": 2}),
        ("tiếng Việt", {"VIETNAMESE": 2}),
    ],
)
def test_marks_by_script(text, expected):
    assert lost_marks(text) == expected


def test_few_foreign_names_do_not_warn(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("An English text about a river and its banks. " * 300 + "नमस्ते")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_stripped_accents([[SourceFile("text", str(path))]])
        path.write_text("")
        warn_of_stripped_accents([[SourceFile("text", str(path))]])
        warn_of_stripped_accents([])


def test_share_is_reported(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("मे " * 100)
    with pytest.warns(
        UserWarning, match=r"from 33\.\d% of the characters \(by script: DEVANAGARI 33\.\d%; in a sample of 299\)"
    ):
        warn_of_stripped_accents([[SourceFile("text", str(path))]])


def test_stripped_umlauts_are_reported_with_words(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Der Fluß fließt für alle über die Brücke, und für den Müller. " * 40)
    with pytest.warns(UserWarning) as warned:
        line = warn_of_stripped_accents([[SourceFile("text", str(path))]])
    assert line == str(warned[0].message) and len(warned) == 1
    assert line.startswith("data.strip_accents=True changes 41.7% of the words (für becomes fur, über becomes uber, ")
    assert "set --data.strip-accents False" in line


def test_few_accented_names_are_not_reported(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("An English text about Zoë and a river. " + "The river is high and its banks are wide. " * 40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_of_stripped_accents([[SourceFile("text", str(path))]]) == ""
