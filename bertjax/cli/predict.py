"""`bertjax predict`: what a fine-tuned model answers for one input."""

from __future__ import annotations

import argparse

from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `predict`."""
    parser.add_argument("run", metavar="RUN", help="a fine-tuned run, or hf:DIR or hf:NAME of a fine-tuned model")
    parser.add_argument(
        "text",
        nargs="+",
        metavar="TEXT",
        help="the input of the task: one text, two texts (as a question and its text), or a start and its endings",
    )
    parser.add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="for questions without an answer: return none where its score exceeds that of the best answer by more "
        "than X (as in fine-tuning; a model for squad always answers)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the outputs of a fine-tuned model for one input, the likeliest first."""
    from bertjax.loaded import open_model

    model = open_model(arguments.run)
    for line in model.describe(arguments.text, null_threshold=arguments.null_threshold):
        print(line)
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax predict runs/squad 'Who wrote it?' 'The letters were written by Ada.'",
    interrupted="nothing was written; run the same command again to start over",
)
