"""The recipe of a command: its argument, the config that it gives with the overrides, and commands that repeat it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

from bertjax.config import Config, load_recipe, override, render

KEYS = "takes any key of the config as an override, as in --training.steps 1000; CONFIG --help lists them all"


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the argument CONFIG."""
    parser.add_argument("config", metavar="CONFIG", help=f"a recipe, a file in configs/; {KEYS}")


def configured(arguments: argparse.Namespace) -> Config:
    """The recipe with its overrides, printed with the differences first."""
    config, shown = configured_unseen(arguments)
    print(shown, flush=True)
    return config


def configured_unseen(arguments: argparse.Namespace) -> tuple[Config, str]:
    """The recipe with its overrides, and its text to print: of several processes only one prints it."""
    recipe = load_recipe(arguments.config)
    config = override(recipe, arguments.overrides, f"bertjax {arguments.verb} {arguments.config}")
    return config, render(config, recipe)


def command_with(verb: str, arguments: argparse.Namespace, keys: Mapping[str, str] | None = None) -> str:
    """A command for the same recipe with the same overrides, as one line for a shell; `keys` replace theirs."""
    changed = [word for key, value in (keys or {}).items() for word in (f"--{key}", value)]
    return shlex.join(["bertjax", verb, arguments.config, *_without(arguments.overrides, keys or {}), *changed])


def _without(overrides: Sequence[str], keys: Mapping[str, str]) -> list[str]:
    """The overrides without these keys and their values."""
    kept, dropping = [], False
    for word in overrides:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("_", "-") in keys
        if not dropping:
            kept.append(word)
    return kept
