"""`bertjax vocab`: train a vocabulary, or extend one."""

from __future__ import annotations

import argparse
from dataclasses import replace

from bertjax.cli.recipe import (
    add_recipe,
    add_runner,
    load_config,
    open_runner,
    require_processes,
    runner_arguments,
    shell_command,
)
from bertjax.cli.verb import Verb
from bertjax.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--extend",
        nargs="+",
        action="extend",
        metavar="SOURCE",
        help="add words of these sources to the vocabulary of --data.vocab",
    )
    parser.add_argument("--max-new", type=int, default=1000, metavar="N", help="words to add at most (%(default)s)")
    add_runner(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train the vocabulary, or find the trained one."""
    from bertjax.storage.progress import SIGNS, ProgressLine
    from bertjax.text.trained_vocabulary import prepare_vocabulary

    config = load_config(arguments)
    if arguments.extend:
        require_processes(arguments, "--extend")
        return _extend(config, arguments)
    with SIGNS.speaking("training the vocabulary"):
        path = prepare_vocabulary(config.data, ProgressLine(), open_runner(arguments, config))
    following = shell_command("prepare", arguments, {"data.vocab": str(path)}) + runner_arguments(arguments)
    print(f"vocabulary: {path}\nnext: {following}")
    return 0


def _extend(config: Config, arguments: argparse.Namespace) -> int:
    from bertjax.storage.progress import ProgressLine
    from bertjax.text.extended_vocabulary import extend_vocabulary

    data = replace(config.data, sources=tuple(arguments.extend), weights=())
    result = extend_vocabulary(data, arguments.max_new, ProgressLine())
    words = ", ".join(result.added[:10]) + (", ..." if len(result.added) > 10 else "")
    print(
        f"{len(result.added):,} words added ({words or 'none saves tokens'}), {result.replaced:,} in place of "
        "[unused] ones"
    )
    print(f"tokens per word of this text: {result.pieces_after:.3f} (before: {result.pieces_before:.3f})")
    print(f"vocabulary: {result.path}")
    following = shell_command("pretrain", arguments, {"data.vocab": str(result.path)})
    print(f"next: {following} --init-from WEIGHTS_OF_THE_OLD_ONE")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax vocab bert_mini --data.sources 'text:books/*.txt' --data.vocab-size 16000",
    takes_keys=True,
    takes_dashes=True,
)
