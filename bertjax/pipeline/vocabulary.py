"""The vocabulary of a run that starts from another model, and the text rules of a vocabulary that has its own."""

from __future__ import annotations

from dataclasses import asdict, replace

from bertjax.config import Config
from bertjax.convert.sources import source_vocabulary
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization import artefact
from bertjax.tokenization.tokenizer import TextRules


def with_vocabulary(config: Config) -> Config:
    """The config with the vocabulary of `init_from` where `data.vocab` is empty, and with the rules of its artefact.

    A `tokenizer.json` normalises text by rules of its own, so `data.tokenizer`, `data.lowercase` and the other rules
    are read off it. Raises ValueError for a model or a vocabulary that cannot be read.
    """
    data = config.data
    if config.init_from and not data.vocab:
        data = replace(data, **source_vocabulary(config.init_from))
    if data.vocab:
        tokenizer = load_vocabulary(data.vocab, TextRules.of(data))
        if artefact.FILE in tokenizer.files:
            data = replace(data, tokenizer=tokenizer.kind, **asdict(tokenizer.rules))
    return config if data == config.data else replace(config, data=data)
