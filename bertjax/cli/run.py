"""`bertjax run`: verify, replay or average what is in a run's directory."""

from __future__ import annotations

import argparse

from bertjax.cli.average import AVERAGE
from bertjax.cli.replay import REPLAY
from bertjax.cli.verb import Verb, VerbParser
from bertjax.cli.verify import VERIFY

_ACTIONS = {
    "verify": (VERIFY, "verify the files of a run, checkpoint, token store, export or index against their checksums"),
    "replay": (REPLAY, "repeat one training step and show its loss by row and gradient by layer"),
    "average": (AVERAGE, "average the last checkpoints of a run into a new run"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=VerbParser)
    for name, (action, does) in _ACTIONS.items():
        subparser = actions.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            epilog=f"example: {action.example}",
            allow_abbrev=False,
        )
        action.add_arguments(subparser)


def run(arguments: argparse.Namespace) -> int:
    """Run an action."""
    return _ACTIONS[arguments.action][0].run(arguments)


VERB = Verb(
    add_arguments,
    run,
    example=VERIFY.example,
    interrupted="nothing was changed; run the same command again to start over",
)
