"""Warnings about accents that are stripped."""

import warnings

import pytest

from bertjax.text.marks import warn_of_stripped_accents
from bertjax.text.sources.source import SourceFile


@pytest.mark.parametrize("text", ["नमस्ते", "ที่นี่", "أهلاً", "мой ёж", "がんばる", "tiếng Việt", "Brücke", "cafe\u0301"])
def test_words_with_marks_are_reported(text, tmp_path):
    (tmp_path / "a.txt").write_text("An English text about a river and its banks. " * 10 + text)
    with pytest.warns(UserWarning, match="strip_accents=True changes words that are"):
        warn_of_stripped_accents([[SourceFile("text", str(tmp_path / "a.txt"))]], True)


def test_few_foreign_names_do_not_warn(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("An English text about a river and its banks. " * 300 + "नमस्ते")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_stripped_accents([[SourceFile("text", str(path))]], True)
        path.write_text("")
        warn_of_stripped_accents([[SourceFile("text", str(path))]], True)
        warn_of_stripped_accents([], True)


def test_scripts_without_marks_are_not_reported(tmp_path):
    (tmp_path / "a.txt").write_text("plain English 한국어 中文")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_of_stripped_accents([[SourceFile("text", str(tmp_path / "a.txt"))]], True) == ""


def test_stripped_umlauts_are_reported_with_words(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("Der Fluß fließt für alle über die Brücke, und für den Müller. " * 40)
    with pytest.warns(UserWarning) as record:
        line = warn_of_stripped_accents([[SourceFile("text", str(path))]], True)
    assert line == str(record[0].message) and len(record) == 1
    assert line.startswith("data.strip_accents=True changes words that are 45.8% of the text (für becomes fur, ")
    assert "set --data.strip-accents False" in line


def test_split_syllables_are_reported_unless_recomposed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("한국어 위키백과. " * 40)
    with pytest.warns(UserWarning, match=r"95\.\d% of the text \(한국어 becomes ᄒ ᅡ ᆫ ᄀ ᅮ ᆨ ᄋ ᅥ, |100"):
        warn_of_stripped_accents([[SourceFile("text", str(path))]], False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert warn_of_stripped_accents([[SourceFile("text", str(path))]], True) == ""
