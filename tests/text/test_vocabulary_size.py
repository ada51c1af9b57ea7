"""The size of a vocabulary comes from its file, or else from the recipe."""

from __future__ import annotations

from pathlib import Path

from bertjax.config import DataConfig
from bertjax.text.trained_vocabulary import vocabulary_size


def test_size_comes_from_a_readable_file(tmp_path: Path) -> None:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    assert vocabulary_size(DataConfig(vocab=str(file))) == (7, f"vocabulary of 7 entries, from {file}")


def test_size_comes_from_the_recipe_otherwise(tmp_path: Path) -> None:
    assert vocabulary_size(DataConfig()) == (30_522, "vocabulary of 30,522 entries, from data.vocab_size")
    size, origin = vocabulary_size(DataConfig(vocab=str(tmp_path / "none.txt"), vocab_size=99))
    assert size == 99
    assert origin.startswith("vocabulary of 99 entries, from data.vocab_size (vocabulary") and "none.txt" in origin
