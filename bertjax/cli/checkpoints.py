"""`bertjax checkpoints`: the predictions of each checkpoint of a run for one text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.model_source import one_or_two
from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.interpret.checkpoint_predictions import CheckpointPredictions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `checkpoints`."""
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE", help="one or two sentences")
    parser.add_argument("--top", type=int, default=3, metavar="K", help="tokens shown for each [MASK] (%(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Print the predictions of each checkpoint, oldest first."""
    from bertjax.interpret.checkpoint_predictions import checkpoint_predictions

    sentences = one_or_two(arguments.sentences)
    print(" / ".join(sentences))
    for at in checkpoint_predictions(arguments.run, sentences, arguments.top):
        print(f"step {at.step:>9,}  " + "  |  ".join(_predictions(at)), flush=True)
    return 0


def _predictions(at: CheckpointPredictions) -> list[str]:
    follows = [] if at.follows is None else [f"B follows A {at.follows:6.1%}"]
    return follows + ["  ".join(f"{token} {share:.1%}" for token, share in guesses) for guesses in at.guesses]


VERB = Verb(
    add_arguments,
    run,
    example="bertjax checkpoints runs/quickstart 'Return the [MASK] of the array.' 'The array must not be empty.'",
    interrupted="nothing was written; run the same command again to start over",
)
