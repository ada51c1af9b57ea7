"""`bertjax fill-mask --checkpoints`: the predictions of each checkpoint of a run for one text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.model_source import one_or_two

if TYPE_CHECKING:
    from bertjax.interpret.checkpoint_predictions import CheckpointPredictions


_TOP = 3  # predictions of each [MASK], so that a checkpoint is one line


def print_checkpoints(arguments: argparse.Namespace) -> int:
    """Print the predictions of each checkpoint, oldest first."""
    from bertjax.interpret.checkpoint_predictions import checkpoint_predictions

    sentences = one_or_two(arguments.text)
    print(" / ".join(sentences))
    top = _TOP if arguments.top is None else arguments.top
    for at in checkpoint_predictions(arguments.run, sentences, top):
        print(f"step {at.step:>9,}  " + "  |  ".join(_predictions(at)), flush=True)
    return 0


def _predictions(at: CheckpointPredictions) -> list[str]:
    follows = [] if at.follows is None else [f"B follows A {at.follows:6.1%}"]
    return follows + ["  ".join(f"{token} {share:.1%}" for token, share in guesses) for guesses in at.guesses]
