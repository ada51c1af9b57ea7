"""What the verbs with a recipe share: its config with the overrides, who does the work, who prints, what comes next."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bertjax.config import Config, flatten, load_recipe, override, render, to_dict

if TYPE_CHECKING:
    from bertjax.runtime.processes import Processes
    from bertjax.text.pool import Runner
    from bertjax.training.trainer import Say

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


# Where files lie on a host, and the number of the process.
_OF_A_HOST = {"data.root", "data.cache_dir", "data.workers", "data.threads", "compilation_cache", "hosts.process"}


def speaker(processes: Processes) -> Say:
    """The function that prints a line in the first process and does nothing in the others."""
    return print_now if processes.first else _say_nothing


def print_now(line: str) -> None:
    """Print and flush, for readers of a log that grows."""
    print(line, flush=True)


def _say_nothing(line: str) -> None:
    pass


def require_same_config(config: Config, processes: Processes) -> None:
    """Raise ValueError naming the keys that differ between the processes, other than those of one host."""
    flat = {key: repr(value) for key, value in flatten(to_dict(config)).items() if key not in _OF_A_HOST}
    digest = hashlib.sha256(json.dumps(flat).encode()).hexdigest()[:16]
    if len(set(processes.gather("digest of the config", digest))) == 1:
        return
    first, *others = [json.loads(text) for text in processes.gather("config", json.dumps(flat))]
    for number, other in enumerate(others, 1):
        differing = [f"{key}={other[key]} (process 0: {first[key]})" for key in first if other[key] != first[key]]
        if differing:
            raise ValueError(
                f"{processes.called([number])} was started with another config: {', '.join(differing)}; "
                "start all processes with the same recipe and overrides"
            )
