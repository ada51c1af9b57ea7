"""`bertjax prepare`: convert text to a token store."""

from __future__ import annotations

import argparse
import re

from bertjax.cli.recipe import add_recipe, add_runner, load_config, open_runner, require_processes, shell_command
from bertjax.cli.verb import Verb
from bertjax.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="prepare the text on machine I of N (from 0/N to N-1/N) that share data.root, as in a job array",
    )
    add_runner(parser)


def run(arguments: argparse.Namespace) -> int:
    """Make the token store, or find the one made before."""
    from bertjax.pipeline.preparation import prepare

    config = load_config(arguments)
    if arguments.shard:
        require_processes(arguments, "--shard")
        return _prepare_share(config, arguments)
    print(prepare(config, runner=open_runner(arguments, config)))
    print(f"next: {shell_command('pretrain', arguments)}")
    return 0


def _prepare_share(config: Config, arguments: argparse.Namespace) -> int:
    from bertjax.input.masking.options import require_marked
    from bertjax.pipeline.vocabulary import with_vocabulary
    from bertjax.storage.progress import ProgressLine
    from bertjax.text.prepare import prepare_share

    match = re.fullmatch(r"(\d+)/(\d+)", arguments.shard)
    if not match:
        raise ValueError(f"--shard {arguments.shard}: write it as I/N, from 0/N to N-1/N, as in --shard 3/16")
    config = with_vocabulary(config)
    require_marked(config.stage_data)
    done, units = prepare_share(config.data, int(match[1]), int(match[2]), ProgressLine())
    print(f"shard {arguments.shard} is done: {done} of {units} units of text are prepared")
    print(f"next, after the last shard: {shell_command('prepare', arguments)}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax prepare bert_mini --data.sources 'wikiextractor:wiki/*.xz' --data.vocab vocab.txt",
    takes_keys=True,
    takes_dashes=True,
)
