"""`bertjax compare`: compare runs on the same held-out rows or task, with intervals and p-values."""

from __future__ import annotations

import argparse

from bertjax.cli import reference
from bertjax.cli.model_source import add_page, page_path
from bertjax.cli.recipe import KEYS, add_show_config
from bertjax.cli.verb import Verb, require_unused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="runs, or their checkpoints/<step>; the first is the baseline. With --seeds: one recipe",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=0,
        metavar="N",
        help="held-out rows for pretrained runs (as many as the first one evaluates)",
    )
    add_page(parser)
    seeds = parser.add_argument_group(
        "the spread over seeds", f"train a recipe with several seeds, and store their curves for later runs; {KEYS}"
    )
    reference.add_options(seeds)
    add_show_config(seeds)


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of the runs, and their differences from the first."""
    if arguments.seeds:
        if len(arguments.run) > 1 or arguments.rows or arguments.html:
            raise ValueError("--seeds trains one RECIPE; leave out --rows, --html and further runs")
        return reference.write_curves(arguments)
    require_unused(arguments, ("output", "show_config"), "--seeds")
    if arguments.overrides:
        raise ValueError(f"{arguments.overrides[0]}: runs have their config; only --seeds takes settings of a recipe")
    from bertjax.interpret.comparison_page import comparison_tables, render_comparison, verdicts
    from bertjax.interpret.run_comparison import compare_runs
    from bertjax.report.page import text_lines
    from bertjax.storage.files import replace_text
    from bertjax.storage.progress import ProgressLine

    if arguments.rows < 0:
        raise ValueError(f"--rows {arguments.rows}: give a number of rows above 0")
    page = page_path(arguments.html) if arguments.html else None
    comparison = compare_runs(arguments.run, arguments.rows, ProgressLine())
    print(f"on {comparison.examples}")
    for table in comparison_tables(comparison):
        print("", table.title, *text_lines(table), sep="\n")
    print("", *verdicts(comparison), sep="\n")
    if page is not None:
        replace_text(page, render_comparison(comparison))
        print(f"page: {page}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax compare runs/quickstart runs/longer",
    interrupted="run the same command again; with --seeds it continues from what is finished",
    takes_keys=True,
)
