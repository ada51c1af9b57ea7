"""`bertjax compare RECIPE --seeds`: the curves of a recipe over several seeds, a reference for later runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertjax.cli.recipe import load_config, shell_command
from bertjax.config import Config
from bertjax.storage.remote import AnyPath

_FOLDERS = ("run-dir", "data.root")  # they do not affect the curves


def add_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of a reference."""
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        action="extend",
        metavar="SEED",
        help="train RECIPE with these seeds, two or more, each in <run directory>_seed<n>",
    )
    parser.add_argument(
        "--output", metavar="FILE.json", help="the file to write; pretrain looks in configs/references (<name>.json)"
    )


def write_curves(arguments: argparse.Namespace) -> int:
    """Train the recipe once with each seed, and write the curves."""
    seeds, (arguments.config,) = arguments.seeds, arguments.run
    if len(set(seeds)) < len(seeds) or len(seeds) < 2:
        raise ValueError(f"--seeds {' '.join(map(str, seeds))}: give two seeds or more, each once")
    config = load_config(arguments)
    if config.training.budget:
        raise ValueError(f"training.budget={config.training.budget!r}: runs of a reference have one length; give steps")
    output = Path(arguments.output or f"{config.name}.json")
    if output.suffix != ".json" or not output.parent.is_dir():
        raise ValueError(f"--output {output}: name a .json file in an existing folder")

    from bertjax.run.reference_curve import make_reference, write_reference

    command = shell_command("pretrain", arguments, leaving_out=_FOLDERS)
    reference = make_reference(config.name, command, _train(config, seeds))
    write_reference(output, reference)
    for name, curve in reference.curves.items():
        print(f"  {name:20} {curve.mean[-1]:.4f} ± {curve.spread[-1]:.4f} after {curve.steps[-1]:,} steps")
    print(f"{len(seeds)} runs; written to {output}")
    return 0


def _train(config: Config, seeds: Sequence[int]) -> list[AnyPath]:
    """Train with each seed and return the runs' directories. Finished runs are kept, stopped ones resume."""
    from bertjax.run.pretrain import pretrain

    runs = []
    for seed in seeds:
        run_config = replace(
            config, run_dir=f"{config.directory}_seed{seed}", training=replace(config.training, seed=seed)
        )
        runs.append(pretrain(run_config).directory)
    return runs
