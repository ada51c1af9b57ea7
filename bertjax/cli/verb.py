"""What the file of a verb says of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Its file is imported for `--help`, so it imports nothing heavy at its top; `run` imports what it works with.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    # Takes the parsed arguments, with `verb` (its name), `overrides` (the words for keys of a config) and
    # `behind_dashes` (the words after `--`); returns the exit code.
    run: Callable[[argparse.Namespace], int]
    example: str
    interrupted: str = "run the same command again to continue from what is finished"
    takes_keys: bool = False  # whether words that no argument takes are keys of a config
    takes_dashes: bool = False  # whether the words after `--` are for another program
