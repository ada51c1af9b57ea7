"""`bertjax pretrain`: everything from text to a reported and exported model."""

from __future__ import annotations

import argparse

from bertjax.cli.recipe import add_log, add_recipe, configured_unseen
from bertjax.cli.verb import Verb
from bertjax.config import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pretrain`."""
    add_recipe(parser)
    add_log(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing of the way from text to a trained model, and print what it reached; every process does it."""
    from bertjax.storage.progress import SIGNS

    config, shown = configured_unseen(arguments)
    with SIGNS.speaking("importing jax"):
        return _run(config, shown)


def _run(config: Config, shown: str) -> int:
    from bertjax.pipeline.pretraining import pretrain
    from bertjax.pipeline.session import print_now
    from bertjax.runtime.processes import Stopped

    try:
        result = pretrain(config, announce=shown, ends_process=True)
    except Stopped as stopped:
        print_now(f"\n{stopped}")
        return stopped.exit_code
    if result.summary is not None:
        print_now(str(result))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax pretrain bert_mini --data.sources 'text:books/*.txt'",
    takes_keys=True,
)
