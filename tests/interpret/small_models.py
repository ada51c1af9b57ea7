"""Small random models, and texts of their words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from exported_models import trained_model

from bertjax.families.esm import ESM
from bertjax.input.tfrecords.rows import Segments
from bertjax.interpret.sample_text import SampleText
from bertjax.run.run_directory import TrainedModel
from bertjax.tokenization.symbols import CHARACTERS
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

_WORDS = """i went to the store at bought fresh straw ##berries sweet bank river money loan water sat on paid into muddy
high interest account of a museum opened in drawings family gave it every year . , <b> & </script>"""
WORDS = _WORDS.split()


def wordpiece() -> WordPiece:
    """A vocabulary of a few whole words, including some that look like HTML."""
    return WordPiece([*SPECIAL_TOKENS, *WORDS, "<", ">", "/", "b", "script"], TextRules(True, True))


def small_model(directory: Path, **fields) -> TrainedModel:
    """A random model with that vocabulary, for rows of 64 tokens."""
    return trained_model(directory, wordpiece(), **fields)


def small_esm(directory: Path) -> TrainedModel:
    """A random ESM-2 with its published vocabulary."""
    names = ("position_embedding", "token_dropout", "mask_token_id", "embedding_norm", "norm_place", "pooler")
    fields = {name: getattr(ESM.presets["8m"], name) for name in (*names, "type_vocab_size", "layer_norm_eps")}
    return trained_model(directory, CHARACTERS.build("esm2"), family="esm", **fields)


def make_sample(tokenizer: Tokenizer, sentences: list[str], origin: str = "a <test>") -> SampleText:
    """Sentences as sample text."""
    ids, lengths = tokenizer.encode(sentences)
    return SampleText(origin, Segments(ids.astype(np.int32), lengths), tokenizer)


def random_sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of 4 to 12 random words."""
    draw = np.random.default_rng(seed)
    words = [word for word in WORDS if word.isalpha()]
    return [" ".join(draw.choice(words, draw.integers(4, 13))) + " ." for _ in range(count)]
