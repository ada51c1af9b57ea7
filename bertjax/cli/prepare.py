"""`bertjax vocab` and `bertjax prepare`: from text to a vocabulary and a token store."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from functools import partial

from bertjax.cli.recipe import configured
from bertjax.config import Config, validate
from bertjax.storage.progress import ProgressLine
from bertjax.storage.remote import place_of
from bertjax.text import beam
from bertjax.text.extended_vocabulary import extend_vocabulary
from bertjax.text.pool import Runner, processes
from bertjax.text.prepare import prepare as prepare_store
from bertjax.text.prepare import prepare_share, reading_notes
from bertjax.text.store.format import SPLITS, read_manifest, size_of
from bertjax.text.trained_vocabulary import prepare_vocabulary


def vocab(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Train the vocabulary, or find it made already."""
    config = validate(configured(arguments, overrides))
    if arguments.extend:
        _require_processes(arguments, "--extend")
        return _extend_vocabulary(config, arguments)
    path = prepare_vocabulary(config.data, ProgressLine(), _runner(arguments, config))
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
        _require_processes(arguments, "--shard")
        return _prepare_share(config, arguments)
    path = prepare_store(config.data, ProgressLine(), _runner(arguments, config))
    manifest = read_manifest(path)
    for split in SPLITS:
        print(f"{split}: {size_of(manifest, split)}")
    for note in reading_notes(manifest):
        print(f"note: {note}")
    print(f"token store: {path}\nnext: bertjax pretrain {arguments.config}")
    return 0


def _prepare_share(config: Config, arguments: argparse.Namespace) -> int:
    found = re.fullmatch(r"(\d+)/(\d+)", arguments.shard)
    if not found:
        raise ValueError(f"--shard {arguments.shard}: write it as I/N, from 0/N to N-1/N, as in --shard 3/16")
    done, units = prepare_share(config.data, int(found[1]), int(found[2]), ProgressLine())
    print(f"shard {arguments.shard} is done: {done} of {units} units of text are prepared")
    print(f"next, after the last shard: bertjax prepare {arguments.config}, with the same options, makes the store")
    return 0


def _runner(arguments: argparse.Namespace, config: Config) -> Runner:
    """What `--runner` names."""
    if arguments.runner == "beam":
        return partial(beam.run_units, options=arguments.beam_options, folder=place_of(config.data.root))
    if arguments.beam_options:
        raise ValueError(
            f"-- {' '.join(arguments.beam_options)}: what stands behind -- is for Apache Beam; add --runner beam"
        )
    return processes(config.data.workers)


def _require_processes(arguments: argparse.Namespace, option: str) -> None:
    if arguments.runner != "processes" or arguments.beam_options:
        raise ValueError(f"{option} does its work by the processes of this machine; leave --runner out, and all of --")
