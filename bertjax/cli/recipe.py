"""From what stands on the command line to a config, shown before anything runs."""

from __future__ import annotations

import argparse

from bertjax.config import Config, load_recipe, override, render


def configured(arguments: argparse.Namespace, overrides: list[str]) -> Config:
    """The recipe with its overrides, printed with the differences first."""
    config, shown = configured_unseen(arguments, overrides)
    print(shown, flush=True)
    return config


def configured_unseen(arguments: argparse.Namespace, overrides: list[str]) -> tuple[Config, str]:
    """The recipe with its overrides, and how to show it: of several processes only one prints."""
    recipe = load_recipe(arguments.config)
    config = override(recipe, overrides, f"bertjax {arguments.verb} {arguments.config}")
    return config, render(config, recipe)
