"""The vocabulary of a run that starts from another model, and the text rules of an artefact."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from bertjax.config import Config, DataConfig, from_dict
from bertjax.convert.sources import source_vocabulary
from bertjax.run.checkpoint import read_newest_metadata
from bertjax.storage.remote import to_path
from bertjax.text.store.manifest import read_manifest
from bertjax.text.store_sources import sources_are_named
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization import artefact
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import parse_kind


def with_vocabulary(config: Config) -> Config:
    """Fill an empty `data.vocab` with the vocabulary of `init_from`, and the text rules with an artefact's.

    `data.tokenizer`, `data.lowercase` and the other rules follow a `tokenizer.json`, or a token store given instead of
    sources; the names of its sources stay only if a mixture needs them. Vocabularies for sequences other than prose
    keep case and accents. Raises ValueError for a model, a vocabulary or a store that cannot be read.
    """
    data = config.data
    if data.store:
        settings = read_manifest(to_path(data.store[0]))["tokenizer"]
        rules = asdict(TextRules.from_dict(settings))
        sources = data.sources if sources_are_named(config.stage_data) else ()
        return replace(
            config, data=replace(data, sources=sources, vocab="", vocab_size=settings["vocab_size"], **rules)
        )
    if config.init_from and not data.vocab:
        data = replace(data, **(_saved_vocabulary(config) or source_vocabulary(config.init_from)))
    if config.data.sources and not data.vocab and not parse_kind(data.tokenizer)[0].is_prose:
        data = replace(data, lowercase=False, strip_accents=False)
    if data.vocab:
        tokenizer = load_vocabulary(data.vocab, TextRules.of(data))
        if artefact.FILE in tokenizer.files:
            data = replace(data, tokenizer=tokenizer.kind, **asdict(tokenizer.rules))
    return config if data == config.data else replace(config, data=data)


def vocabulary_line(data: DataConfig) -> str:
    """A line on a vocabulary that was filled in, or that has its own text rules."""
    vocab = f"from {data.store[0]}" if data.store else data.vocab
    rules = f"lower case {'on' if data.lowercase else 'off'}, accents {'stripped' if data.strip_accents else 'kept'}"
    return f"vocabulary: {vocab} ({rules})"


def _saved_vocabulary(config: Config) -> dict[str, Any] | None:
    """The vocabulary recorded in a resumed run's checkpoints; a repository's may have changed since."""
    metadata = read_newest_metadata(config.directory)
    if metadata is None:
        return None
    saved = from_dict(metadata["config"])
    if saved.init_from != config.init_from or not saved.data.vocab:
        return None
    return {"vocab": saved.data.vocab, "tokenizer": saved.data.tokenizer, **asdict(TextRules.of(saved.data))}
