"""`bertjax vocab` and `bertjax prepare`: from text to a vocabulary and a token store."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace

from bertjax.cli.recipe import configured
from bertjax.config import Config, validate
from bertjax.input.training_data import StoredText, sizes
from bertjax.text.extended_vocabulary import extend_vocabulary
from bertjax.text.prepare import prepare as prepare_store
from bertjax.text.prepare import prepare_share
from bertjax.text.progress import ProgressLine
from bertjax.text.store import TokenStore
from bertjax.text.trained_vocabulary import prepare_vocabulary


def vocab(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Train the vocabulary, or find it made already."""
    config = validate(configured(arguments, overrides))
    if arguments.extend:
        return _extend_vocabulary(config, arguments)
    path = prepare_vocabulary(config.data, ProgressLine())
    print(f"vocabulary: {path}\nnext: bertjax prepare {arguments.config} --data.vocab {path}")
    return 0


def _extend_vocabulary(config: Config, arguments: argparse.Namespace) -> int:
    data = replace(config.data, sources=tuple(arguments.extend), weights=())
    made = extend_vocabulary(data, arguments.max_new, ProgressLine())
    shown = ", ".join(made.added[:10]) + (", ..." if len(made.added) > 10 else "")
    print(
        f"{len(made.added):,} words added ({shown or 'none is worth it'}), {made.replaced:,} in place of [unused] ones"
    )
    print(f"a word of this text takes {made.pieces_after:.3f} tokens, and took {made.pieces_before:.3f}")
    print(f"vocabulary: {made.path}")
    print(f"next: bertjax pretrain {arguments.config} --data.vocab {made.path} --init-from WEIGHTS_OF_THE_OLD_ONE")
    return 0


def prepare(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Make the token store, or find it made already."""
    config = validate(configured(arguments, overrides))
    if arguments.shard:
        return _prepare_share(config, arguments)
    path = prepare_store(config.data, ProgressLine())
    print(f"{sizes(StoredText(TokenStore.open(path)))}\ntoken store: {path}\nnext: bertjax pretrain {arguments.config}")
    return 0


def _prepare_share(config: Config, arguments: argparse.Namespace) -> int:
    found = re.fullmatch(r"(\d+)/(\d+)", arguments.shard)
    if not found:
        raise ValueError(f"--shard {arguments.shard}: write it as I/N, from 0/N to N-1/N, as in --shard 3/16")
    done, units = prepare_share(config.data, int(found[1]), int(found[2]), ProgressLine())
    print(f"shard {arguments.shard} is done: {done} of {units} units of text are prepared")
    print(f"next, after the last shard: bertjax prepare {arguments.config}, with the same options, makes the store")
    return 0
