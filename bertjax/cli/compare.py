"""`bertjax compare`: compare runs on the same held-out rows or task, with intervals and p-values."""

from __future__ import annotations

import argparse

from bertjax.cli.model_source import add_page, page_path
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="runs, or their checkpoints/<step>; the first is the baseline",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=0,
        metavar="N",
        help="held-out rows for pretrained runs (as many as the first one evaluates)",
    )
    add_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of the runs, and their differences from the first."""
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
    interrupted="nothing was written; run the same command again to start over",
)
