"""Warnings about accents that are stripped."""

import shutil
import warnings
from collections import Counter

import pytest
from small_corpus import changed

from bertjax.text.marks import warn_of_stripped_accents
from bertjax.text.prepare import prepare
from bertjax.text.sources.source import SourceFile
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import train_sentencepiece


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


@pytest.mark.parametrize(("name", "warned"), [("vocab.txt", True), ("spiece.model", False)])
def test_the_given_vocabulary_decides_on_syllables(data, tmp_path, name, warned):
    """Its kind counts, whatever `data.tokenizer` would train."""
    shutil.rmtree(tmp_path / "text")
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text("한국어 위키백과 문서. " * (number + 1))
    tokenizer = train_sentencepiece(Counter(["한국어", "위키백과", "문서."] * 9), 40, TextRules.of(data), "unigram")
    (content,) = (content for file, content in tokenizer.files.items() if file.endswith(".model"))
    (tmp_path / "spiece.model").write_bytes(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(changed(data, vocab=str(tmp_path / name)))
    assert any("strip_accents=True changes words" in str(one.message) for one in caught) == warned
