"""Tokenize texts with the vocabulary of a model or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization.tokenizer import TextRules, Tokenizer


class Tokens(NamedTuple):
    """A text as tokens, without special ones."""

    tokens: list[str]
    ids: list[int]


def open_tokenizer(source: str, *, cased: bool = False) -> Tokenizer:
    """The tokenizer of a run, hf:DIR, hf:NAME, or a vocabulary file; `cased` keeps case and accents with a vocab.txt.

    Weights are not read. Raises ValueError without a vocabulary, and for `cased` with a source that has its own rules.
    """
    if not Path(source).is_dir():
        rules = TextRules(not cased, not cased)
        tokenizer = load_vocabulary(source, rules)
        if cased and (tokenizer.rules.lowercase, tokenizer.rules.strip_accents) != (False, False):
            raise _own_rules(source)
        return tokenizer
    if cased:
        raise _own_rules(source)
    from bertjax.convert.sources import source_vocabulary

    settings = source_vocabulary(source)
    return load_vocabulary(settings["vocab"], TextRules.from_dict(settings))


def _own_rules(source: str) -> ValueError:
    return ValueError(f"cased: {source} has its own rules; leave it out")


def tokenize(source: str, texts: Sequence[str], *, cased: bool = False) -> list[Tokens]:
    """The tokens and ids of each text. Raises ValueError as `open_tokenizer` does, and for a lone surrogate."""
    tokenizer = open_tokenizer(source, cased=cased)
    rows = [ids.tolist() for ids in tokenizer.encode_sentences(list(texts))]
    return [Tokens([tokenizer.tokens[number] for number in ids], ids) for ids in rows]
