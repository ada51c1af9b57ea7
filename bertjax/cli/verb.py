"""The description of a verb, and its argument parser, which suggests the nearest known word."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

from bertjax.config.suggestions import suggestion


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Its module is imported for `--help`, so heavy imports belong in `run`.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    # Takes the parsed arguments, with `verb` (its name), `overrides` (config keys and values) and `behind_dashes` (the
    # words after `--`); returns the exit code.
    run: Callable[[argparse.Namespace], int]
    example: str
    interrupted: str = "run the same command again to continue from what is finished"
    takes_keys: bool = False  # whether unknown words are config keys
    takes_dashes: bool = False  # whether words after `--` go to another program


def require_unused(arguments: argparse.Namespace, names: Iterable[str], option: str) -> None:
    """Raise ValueError for an option among `names` that was given, which only `option` supports."""
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise ValueError(f"--{name.replace('_', '-')} requires {option}")


class VerbParser(argparse.ArgumentParser):
    """An argument parser whose errors suggest the nearest choice or option."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(
                action, f"{value!r} is unknown; {suggestion(str(value), map(str, action.choices))}"
            )

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and the message, plus an example if an argument is missing."""
        message = re.sub(r"invalid int value: (.*)", r"\1 is not a whole number", message)
        message = re.sub(r"invalid float value: (.*)", r"\1 is not a number", message)
        is_missing = message.startswith(("the following arguments are required", "one of the arguments"))
        if is_missing and self.epilog:
            message = f"{message}; {self.epilog}"
        from bertjax.cli.advice import printable
        from bertjax.config.credentials import without_credentials

        super().error(printable(without_credentials(message)))

    def parse_words(self, words: list[str], *, takes_keys: bool) -> tuple[argparse.Namespace, list[str]]:
        """Parse the words of a verb; also returns the words that are not its arguments.

        Options may stand between positional arguments, unless an unknown word may be a key or the verb has actions.
        """
        asks_for_help = bool({"-h", "--help"} & set(words))  # intermixed parsing drops the defaults that the help shows
        if takes_keys or asks_for_help or self._subparsers is not None:
            return self.parse_known_args(words)
        return self.parse_known_intermixed_args(words)

    def refuse(self, words: list[str]) -> None:
        """Exit with code 2 because the verb does not take these words."""
        hint = ""
        if words[0].startswith("--"):
            near = difflib.get_close_matches(words[0].partition("=")[0], self._option_string_actions, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
        self.error(f"{self.prog.rpartition(' ')[2]} does not take {' '.join(words)}{hint}")
