"""Fixture with forty small generated files, and helpers for their stores."""

import hashlib
import random
from pathlib import Path

import pytest

from bertjax.config import DataConfig
from bertjax.text import corpus
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS

LETTERS = [chr(place) for place in range(ord("a"), ord("z") + 1)]
WORDS = [*("the", "of", "and", "to", "in", "is", "was", "it", "for", "on"), "river", "with", "by", "at", "which", "but"]
VOCAB = [*SPECIAL_TOKENS, ".", ",", *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]


def generated_text(seed, sentences=12):
    draw = random.Random(seed)
    generated = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))).capitalize() + "." for _ in range(sentences)]
    return " ".join(generated[: sentences // 2]) + "\n\n" + " ".join(generated[sentences // 2 :])


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Forty small files in about eight units, with a quarter of the documents held out."""
    monkeypatch.setattr(corpus, "UNIT_BYTES", 2500)
    monkeypatch.setattr(corpus, "MAX_UNITS", 1000)
    (tmp_path / "text").mkdir()
    for number in range(40):
        (tmp_path / "text" / f"{number:02}.txt").write_text(generated_text(number))
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
    return DataConfig(
        sources=(f"text:{tmp_path}/text/*.txt",),
        root=str(tmp_path / "data"),
        vocab=str(tmp_path / "vocab.txt"),
        held_out=0.25,
        workers=1,
    )


def changed(data, **values):
    return DataConfig(**{**vars(data), **values})


def content(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(folder).iterdir())}
