"""Who does the work of `vocab` and `prepare`: the option, and what it chooses."""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from typing import TYPE_CHECKING

from bertjax.config import Config

if TYPE_CHECKING:
    from bertjax.text.pool import Runner


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Add the option `--runner`."""
    parser.add_argument(
        "--runner",
        choices=("processes", "beam"),
        default="processes",
        help="processes of this machine, or Apache Beam, whose options follow --, as in "
        "--runner beam -- --runner=FlinkRunner --flink_master=HOST:8081 (%(default)s)",
    )


def chosen_runner(arguments: argparse.Namespace, config: Config) -> Runner:
    """The runner that `--runner` names. Raises ValueError for options of Beam without Beam."""
    from bertjax.storage.remote import place_of
    from bertjax.text import beam
    from bertjax.text.pool import processes

    if arguments.runner == "beam":
        return partial(beam.run_units, options=arguments.behind_dashes, folder=place_of(config.data.root))
    if arguments.behind_dashes:
        raise ValueError(
            f"-- {' '.join(arguments.behind_dashes)}: the words after -- are options of Apache Beam; add --runner beam"
        )
    return processes(config.data.workers)


def require_processes(arguments: argparse.Namespace, option: str) -> None:
    """Refuse Beam with an option that only processes of this machine carry out. Raises ValueError."""
    if arguments.runner != "processes" or arguments.behind_dashes:
        raise ValueError(f"{option} runs in processes of this machine; leave out --runner and the words after --")


def runner_words(arguments: argparse.Namespace) -> str:
    """The end of a command that uses the same runner."""
    if arguments.runner == "processes":
        return ""
    return f" --runner {arguments.runner} " + shlex.join(["--", *arguments.behind_dashes])
