"""The arguments of verbs that look inside a model: which model, which sentences, and the text to measure on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the argument RUN, which may also be a model of another framework."""
    parser.add_argument(
        "run", metavar="RUN", help="a run's directory, one of its checkpoints/<step>, or hf:DIR of another model"
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add the option `--text`."""
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="plain text to measure on (the run's held-out text, or else built-in sentences)",
    )


def one_or_two(sentences: Sequence[str]) -> tuple[str, ...]:
    """One sentence or a pair. Raises ValueError for more."""
    if len(sentences) > 2:
        raise ValueError(f"{len(sentences)} sentences: give one or two, each in quotes")
    return tuple(sentences)
