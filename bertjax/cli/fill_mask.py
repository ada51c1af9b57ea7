"""`bertjax fill-mask`: the likeliest tokens for each [MASK] of a text."""

from __future__ import annotations

import argparse

from bertjax.cli.model_source import add_source
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fill-mask`."""
    add_source(parser)
    parser.add_argument("text", nargs="+", metavar="TEXT", help="a text with one [MASK] or more")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="tokens shown for each [MASK] (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print the likeliest tokens for each [MASK] of each text."""
    from bertjax.loaded import open_model

    model = open_model(arguments.run)
    for text, found in zip(arguments.text, model.fill_mask(arguments.text, arguments.top), strict=True):
        print(text)
        for guesses in found:
            print("    " + "  ".join(f"{token} {share:.1%}" for token, share in guesses))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax fill-mask runs/quickstart 'This function returns the [MASK] of the array.'",
    interrupted="nothing was written; run the same command again to start over",
)
