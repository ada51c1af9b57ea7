"""`bertjax compare`: compare runs on the same held-out rows or task, with intervals and p-values.

With `--seeds`: the curves of a recipe over several seeds, a reference for later runs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from bertjax.cli.model_source import add_page, page_path
from bertjax.cli.recipe import KEYS, add_show_config, load_config, shell_command
from bertjax.cli.verb import Verb, require_unused

_FOLDERS = ("run-dir", "data.root")  # they do not affect the curves


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    seeds.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        action="extend",
        metavar="SEED",
        help="train RECIPE with these seeds, two or more, each in <run directory>_seed<n>",
    )
    seeds.add_argument(
        "--output", metavar="FILE.json", help="the file to write; pretrain looks in configs/references (<name>.json)"
    )
    add_show_config(seeds)


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of the runs, and their differences from the first."""
    if arguments.seeds:
        if len(arguments.run) > 1 or arguments.rows or arguments.html:
            raise ValueError("--seeds trains one RECIPE; leave out --rows, --html and further runs")
        return _write_reference(arguments)
    require_unused(arguments, ("output", "show_config"), "--seeds")
    if arguments.overrides:
        raise ValueError(f"{arguments.overrides[0]}: runs have their config; only --seeds takes settings of a recipe")
    from bertjax.convert.sources import require_own
    from bertjax.interpret.comparison_page import comparison_tables, render_comparison, verdicts
    from bertjax.interpret.run_comparison import compare_runs
    from bertjax.report.page import text_lines
    from bertjax.storage.files import replace_text
    from bertjax.storage.progress import ProgressLine

    if arguments.rows < 0:
        raise ValueError(f"--rows {arguments.rows}: give a number of rows above 0")
    for run in arguments.run:
        require_own(run)
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


def _write_reference(arguments: argparse.Namespace) -> int:
    """Train the recipe once with each seed, and write the curves. Finished runs are kept, stopped ones resume."""
    seeds = arguments.seeds
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise ValueError(f"--seeds {' '.join(map(str, seeds))}: give two seeds or more, each once")
    recipe_arguments = argparse.Namespace(**vars(arguments), config=arguments.run[0])
    config = load_config(recipe_arguments)
    if config.training.budget:
        raise ValueError(f"training.budget={config.training.budget!r}: runs of a reference have one length; give steps")
    output = Path(arguments.output or f"{config.name}.json")
    if output.suffix != ".json" or not output.parent.is_dir():
        raise ValueError(f"--output {output}: name a .json file in an existing folder")

    from bertjax.run.pretrain import pretrain
    from bertjax.run.reference_curve import make_reference, write_reference

    configs = [
        replace(config, run_dir=f"{config.directory}_seed{seed}", training=replace(config.training, seed=seed))
        for seed in seeds
    ]
    directories = [pretrain(seed_config).directory for seed_config in configs]
    command = shell_command("pretrain", recipe_arguments, leaving_out=_FOLDERS)
    reference = make_reference(config.name, command, directories)
    write_reference(output, reference)
    for name, curve in reference.curves.items():
        print(f"  {name:20} {curve.mean[-1]:.4f} ± {curve.spread[-1]:.4f} after {curve.steps[-1]:,} steps")
    print(f"{len(seeds)} runs; written to {output}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax compare runs/quickstart runs/longer",
    interrupted="run the same command again; with --seeds it continues from what is finished",
    takes_keys=True,
)
