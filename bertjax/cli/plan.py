"""`bertjax plan`: whether a recipe fits a machine that need not be here, how fast it can be and what it costs."""

from __future__ import annotations

import argparse
import sys

from bertjax.cli.page_path import page_path
from bertjax.plan.topologies import LOCAL, parse_name, set_environment

DOES_NOT_FIT = 3


def plan(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Print the plan of a recipe and, if asked for, write it as a page. The exit code is 3 if it does not fit."""
    if arguments.topology != LOCAL:
        parse_name(arguments.topology, arguments.slices)
    page = None if arguments.html is None else page_path(arguments.html)
    # jax reads its environment when it is imported, so that everything that imports it comes after this line.
    set_environment(arguments.topology)
    from bertjax.cli.recipe import configured
    from bertjax.config import validate
    from bertjax.plan.planning import answer

    config = validate(configured(arguments, overrides))
    told = answer(config, arguments, _say)
    print(told.text)
    if page is not None:
        from bertjax.plan.page import render_plan
        from bertjax.storage.files import replace_text

        replace_text(page, render_plan(told))
        print(f"\npage: {page}")
    return 0 if told.plan.fits else DOES_NOT_FIT


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
