"""The size of a vocabulary is that of its file where there is one, and otherwise the recipe's word."""

from __future__ import annotations

from pathlib import Path

from bertjax.config import DataConfig
from bertjax.text.trained_vocabulary import vocabulary_size


def test_size_is_the_files_if_readable(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    assert vocabulary_size(DataConfig(vocab=str(file))) == (7, f"vocabulary of 7 entries, from {file}")


def test_size_is_the_recipes_otherwise(tmp_path: Path) -> None:
    assert vocabulary_size(DataConfig()) == (30_522, "vocabulary of 30,522 entries, from data.vocab_size")
    size, told = vocabulary_size(DataConfig(vocab=str(tmp_path / "none.txt"), vocab_size=99))
    assert size == 99
    assert told.startswith("vocabulary of 99 entries, from data.vocab_size (vocabulary") and "none.txt" in told
