"""`bertjax vocab` and `bertjax prepare`: from text to a vocabulary and a token store."""

from __future__ import annotations

import argparse

from bertjax.cli.recipe import configured
from bertjax.config import validate
from bertjax.text.prepare import prepare as prepare_store
from bertjax.text.prepare import prepare_vocabulary
from bertjax.text.progress import ProgressLine
from bertjax.text.store import TokenStore


def vocab(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Train the vocabulary, or find it made already."""
    config = validate(configured(arguments, overrides))
    path = prepare_vocabulary(config.data, ProgressLine())
    print(f"vocabulary: {path}\nnext: bertjax prepare {arguments.config} --data.vocab {path}")
    return 0


def prepare(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Make the token store, or find it made already."""
    config = validate(configured(arguments, overrides))
    path = prepare_store(config.data, ProgressLine())
    print(f"{describe_store(TokenStore.open(path))}\ntoken store: {path}\nnext: bertjax pretrain {arguments.config}")
    return 0


def describe_store(store: TokenStore) -> str:
    """What is in a store, in a line per split."""
    lines = []
    for name in ("train", "held_out"):
        split = store.split(name)
        lines.append(
            f"{name}: {split.num_documents:,} documents, {split.num_sentences:,} sentences, {split.num_tokens:,} tokens"
        )
    return "\n".join(lines)
