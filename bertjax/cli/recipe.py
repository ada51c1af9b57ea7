"""From what stands on the command line to a config, shown before anything runs."""

from __future__ import annotations

import argparse

from bertjax.config import Config, load_recipe, override, render


def configured(arguments: argparse.Namespace, overrides: list[str]) -> Config:
    """The recipe with its overrides, printed with the differences first."""
    recipe = load_recipe(arguments.config)
    config = override(recipe, overrides, f"bertjax {arguments.verb} {arguments.config}")
    print(render(config, recipe), flush=True)
    return config
