"""`bertjax predict`: what a fine-tuned model answers for one input."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.finetune.inference import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `predict`."""
    parser.add_argument("run", metavar="RUN", help="a fine-tuned run, or hf:DIR of a fine-tuned model")
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
    start, *more = arguments.text
    is_choice = model.config.head == "choice"
    given = (start, more) if is_choice else (start, *more) if more else start
    found = model.predict(given, null_threshold=arguments.null_threshold)
    for line in _lines(found):
        print(line)
    return 0


def _lines(found: Output) -> list[str]:
    """An output as text."""
    from bertjax.finetune.inference import Answer, Choice, Prediction

    if isinstance(found, Prediction):
        likeliest = sorted(found.probabilities.items(), key=lambda item: -item[1])
        return [f"{chance:6.1%}  {label}" for label, chance in likeliest]
    if isinstance(found, Choice):
        return [f"{found.probability:6.1%}  {found.end}"]
    if isinstance(found, Answer):
        return [f"{found.probability:6.1%}  {found.text or '(the text does not answer it)'}"]
    if isinstance(found, list):
        return [f"{tag.tag or '-':12} {tag.word}" for tag in found]
    return [f"{found:.4f}"]


VERB = Verb(
    add_arguments,
    run,
    example="bertjax predict runs/squad 'Who wrote it?' 'The letters were written by Ada.'",
    interrupted="nothing was written; run the same command again to start over",
)
