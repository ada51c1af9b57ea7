"""`bertjax fill-mask`: the likeliest tokens for each [MASK] of a text, and corrections of unlikely words."""

from __future__ import annotations

import argparse

from bertjax.cli import correct
from bertjax.cli.model_source import add_source, add_texts, input_texts, one_or_two, require_text_or_file
from bertjax.cli.verb import Verb, require_unused

_TOP, _TOP_OF_CHECKPOINT = 5, 3  # predictions of each [MASK]; a checkpoint is one line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser, "a text with one [MASK] or more")
    parser.add_argument(
        "--top", type=int, metavar="K", help=f"tokens shown for each [MASK] or word ({_TOP}; 3 with the modes below)"
    )
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="show the predictions of each checkpoint of a run, oldest first, for one or two sentences",
    )
    parser.add_argument(
        "--correct",
        action="store_true",
        help="correct unlikely words of texts without [MASK], or measure correction on sentence pairs",
    )
    correct.add_options(parser.add_argument_group("with --correct"))


def run(arguments: argparse.Namespace) -> int:
    """Print the likeliest tokens for each [MASK] of each text."""
    if arguments.correct and not arguments.checkpoints:
        return correct.correct(arguments)
    require_unused(arguments, correct.OPTIONS, "--correct")
    if arguments.correct:
        raise ValueError("--checkpoints with --correct: give one of them")
    require_text_or_file(arguments, ", with [MASK] in place of a word")
    if arguments.checkpoints and arguments.file:
        raise ValueError(f"--checkpoints with --file {arguments.file}: give one or two sentences as TEXT instead")
    if arguments.checkpoints:
        return _print_checkpoints(arguments)
    from bertjax.loaded import open_model

    texts, top = list(input_texts(arguments)), _TOP if arguments.top is None else arguments.top
    model = open_model(arguments.run)
    for text, answers in zip(texts, model.fill_mask(texts, top), strict=True):
        print(text)
        for guesses in answers:
            print("    " + "  ".join(f"{token} {share:.1%}" for token, share in guesses))
    return 0


def _print_checkpoints(arguments: argparse.Namespace) -> int:
    """Print the predictions of each checkpoint of a run for one text, oldest first."""
    from bertjax.interpret.checkpoint_predictions import checkpoint_predictions

    sentences = one_or_two(arguments.text)
    print(" / ".join(sentences))
    top = _TOP_OF_CHECKPOINT if arguments.top is None else arguments.top
    for at in checkpoint_predictions(arguments.run, sentences, top):
        columns = [] if at.follows is None else [f"B follows A {at.follows:6.1%}"]
        columns += ["  ".join(f"{token} {share:.1%}" for token, share in guesses) for guesses in at.guesses]
        print(f"step {at.step:>9,}  " + "  |  ".join(columns), flush=True)
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax fill-mask runs/quickstart 'She opened the [MASK] and went out.'",
    interrupted="nothing was written; run the same command again to start over",
)
