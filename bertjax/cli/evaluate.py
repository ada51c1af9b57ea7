"""`bertjax evaluate`: a run's figures on its held-out text, scores of texts, accuracies on minimal pairs."""

from __future__ import annotations

import argparse

from bertjax.cli import contacts, score, substitutions
from bertjax.cli.model_source import add_source, add_texts
from bertjax.cli.verb import Verb, require_unused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_texts(parser, "a text to score by its pseudo-log-likelihood; without texts: evaluate RUN on its held-out text")
    score.add_options(parser.add_argument_group("scores"))
    substitutions.add_options(parser.add_argument_group("scores of variants"))
    contacts.add_options(parser.add_argument_group("contacts"))


def run(arguments: argparse.Namespace) -> int:
    """Print a run's held-out figures and the baselines, or scores of texts."""
    if arguments.contacts:
        require_unused(arguments, substitutions.OPTIONS, "--substitutions")
        return contacts.predict(arguments)
    if arguments.substitutions:
        return substitutions.score(arguments)
    require_unused(arguments, substitutions.OPTIONS, "--substitutions")
    if arguments.text or arguments.file or arguments.field or arguments.pairs:
        return score.score(arguments)
    require_unused(arguments, score.OPTIONS, "TEXT, --file or --pairs")
    from bertjax.pipeline.evaluation import evaluate

    print(evaluate(arguments.run))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax evaluate runs/quickstart",
    interrupted="nothing was written; run the same command again to start over",
)
