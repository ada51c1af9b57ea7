"""Extending a vocabulary: adds the words that save most tokens, first in [unused] places; the rest is unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bertjax.__main__ import main
from bertjax.config import DataConfig
from bertjax.text.extended_vocabulary import extend_vocabulary, with_words, worthwhile_words
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

LETTERS = [chr(place) for place in range(ord("a"), ord("z") + 1)]
OLD = [*SPECIAL_TOKENS, "[unused0]", "[unused1]", ".", "the", "dose", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TEXT = "The metformin dose. The insulin dose. Metformin insulin metformin. " * 20 + "The rare dose of gold é日. " * 12


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    (tmp_path / "vocab.txt").write_text("\n".join(OLD) + "\n")
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"{TEXT} Document {number}.")
    return DataConfig(
        sources=(f"text:{tmp_path}/*[0-9].txt",), root=str(tmp_path / "data"), vocab=str(tmp_path / "vocab.txt"),
        held_out=0.1, workers=1,
    )  # fmt: skip


def test_words_that_save_the_most_tokens_are_chosen() -> None:
    old = WordPiece(OLD, TextRules(True, True))
    words = {"metformin": 30, "insulin": 30, "the": 10**6, "gold": 40, "of": 90, "rare": 9, "x9": 500, "日": 12}
    assert worthwhile_words(old, words, 4) == ["metformin", "insulin", "gold", "of"]  # 240, 180, 120, 90
    assert worthwhile_words(old, words, 9)[4:] == ["日"], (
        "a word that was [UNK], but none that is rare, known or has digits"
    )
    assert worthwhile_words(old, {"the": 100}, 5) == []


def test_unused_entries_are_replaced_first() -> None:
    tokens, replaced = with_words(OLD, ["metformin", "insulin", "gold"])
    assert replaced == 2 and tokens[5:7] == ["metformin", "insulin"] and tokens[-1] == "gold"
    assert [t for t in tokens if t in OLD] == [t for t in OLD if not t.startswith("[unused")]
    assert with_words(OLD, ["gold"])[0][6] == "[unused1]" and len(with_words(OLD, ["gold"])[0]) == len(OLD)


def test_trained_vocabulary_is_extended_and_stored(data: DataConfig) -> None:
    extension = extend_vocabulary(data, 3)
    new = WordPiece.load(extension.path, TextRules(True, True))
    assert extension.added[:2] == ("metformin", "insulin") and len(extension.added) == 3 and extension.replaced == 2
    assert new.vocab_size == len(OLD) + 1
    assert 1 < extension.pieces_after < 0.6 * extension.pieces_before
    again = extend_vocabulary(data, 3)
    assert again == extension
    assert extend_vocabulary(data, 2).path != extension.path
    extension.path.write_text("changed")
    with pytest.raises(ValueError, match="was changed after it was made"):
        extend_vocabulary(data, 3)


def test_extension_requires_a_vocabulary(data: DataConfig) -> None:
    with pytest.raises(ValueError, match=r"data.vocab='', --max-new 3: name the vocabulary to extend"):
        extend_vocabulary(DataConfig(**{**vars(data), "vocab": ""}), 3)


def test_command_line_extends(
    data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = Path(__file__).parents[2] / "configs" / "bert_mini.py"
    arguments = ["vocab", str(recipe), "--extend", *data.sources, "--max-new", "2", "--data.vocab", data.vocab]
    assert main(arguments) == 0
    assert "2 words added (metformin, insulin), 2 in place of [unused] ones" in capsys.readouterr().out


def test_extension_ignores_training_settings(tmp_path):
    (tmp_path / "old.txt").write_text("\n".join(OLD) + "\n")
    for number in range(12):
        (tmp_path / f"{number}.txt").write_text(f"Kubernetes {number} kubernetes. " * 3)
    data = DataConfig(
        sources=(f"text:{tmp_path}/[0-9]*.txt",),
        vocab=str(tmp_path / "old.txt"),
        root=str(tmp_path / "data"),
        workers=1,
    )
    extensions = [extend_vocabulary(replace(data, tokenizer=kind), 3) for kind in ("unigram", "wordpiece")]
    assert (
        extensions[0] == extensions[1]
        and "kubernetes" in extensions[0].added
        and extensions[0].pieces_after < extensions[0].pieces_before
    )
