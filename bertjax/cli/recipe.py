"""What the verbs with a recipe share: its config with the overrides, who does the work, what comes next."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bertjax.config import Config, differences, from_dict, load_recipe, override, render, render_all, validate
from bertjax.config.rescale import keys_given, rescale
from bertjax.storage.json_documents import read_json
from bertjax.storage.lean_import import require_package
from bertjax.storage.remote import EXTRAS, path_of

if TYPE_CHECKING:
    from bertjax.text.pool import Runner

C = TypeVar("C", bound=Config)
KEYS = "takes any key of the config as an override, as in --training.steps 1000; CONFIG --help lists them all"


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add the argument CONFIG."""
    parser.add_argument(
        "config", metavar="CONFIG", help=f"a recipe: a name that `bertjax recipes` lists, or a .py file; {KEYS}"
    )
    add_show_config(parser)


def add_show_config(parser: argparse.ArgumentParser) -> None:
    """Add the option `--show-config`."""
    parser.add_argument("--show-config", action="store_true", help="print every setting, not only the changed ones")


def add_log(parser: argparse.ArgumentParser) -> None:
    """Add the option `--log`, which may be repeated."""
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        metavar="NAME",
        help="also log to wandb or mlflow; may be repeated (always: metrics.jsonl; unless the recipe says otherwise: "
        "TensorBoard)",
    )


def with_loggers(config: C, names: Sequence[str]) -> C:
    """The config with these loggers too, each once."""
    return replace(config, log=tuple(dict.fromkeys((*config.log, *names))))


def configured(arguments: argparse.Namespace) -> Config:
    """The recipe with its overrides, valid, once what it changes of the recipe is printed."""
    config, shown = configured_unseen(arguments)
    validate(config)
    print(shown, flush=True)
    return config


def configured_unseen(arguments: argparse.Namespace) -> tuple[Config, str]:
    """The recipe with its overrides, and its text to print: of several processes only one prints it.

    Where `training.steps` is changed, what follows from it changes in proportion, unless it is given too.
    """
    recipe = load_recipe(arguments.config)
    given = override(recipe, arguments.overrides, f"bertjax {arguments.verb} {arguments.config}")
    given = with_loggers(given, getattr(arguments, "log", ()))
    config = scaled(given, recipe, keys_given(arguments.overrides))
    _require_packages(config)
    shown = render(given, recipe)
    if following := differences(config, given):
        named = ", ".join(f"{key}={new}" for key, (_, new) in following.items() if not isinstance(new, list))
        stages = (
            [f"stages from steps {', '.join(str(stage.start) for stage in config.stages)}"] if config.stages else []
        )
        shown += f"\n  scaled with it: {', '.join([*filter(None, [named]), *stages])}"
    return config, f"{shown}\n{render_all(config)}" if arguments.show_config else shown


def scaled(config: Config, recipe: Config, given: Collection[str]) -> Config:
    """The config with all that follows from the number of steps, where that is not the recipe's.

    A run that is there keeps the schedule it began with, so that it can be trained for longer.
    """
    steps = config.training.steps
    if steps == recipe.training.steps or steps <= len(config.stages):
        return config
    changed = rescale(replace(config, training=replace(config.training, steps=recipe.training.steps)), steps, given)
    begun = _begun(config)
    if begun is None or begun.training.steps == steps:
        return changed
    kept = {
        name: getattr(begun.optimizer, name)
        for name in ("warmup_steps", "decay_steps")
        if f"optimizer.{name}" not in given
    }
    stages = changed.stages if any(key.startswith("stages.") for key in given) else begun.stages
    return replace(changed, optimizer=replace(changed.optimizer, **kept), stages=stages)


def _begun(config: Config) -> Config | None:
    """The config of the run that is in the run's directory; None if there is none, or it cannot be read."""
    try:
        return from_dict(read_json(path_of(config.directory) / "config.json"))
    except (OSError, ValueError):
        return None


def _require_packages(config: Config) -> None:
    """Raise ModuleNotFoundError for the first package that a config needs and that is not installed."""
    from bertjax.text.sources.registry import KINDS

    data = config.data
    for source in data.sources:
        if (kind := KINDS.get(source.partition(":")[0])) and kind.needs:
            require_package(*kind.needs, f"data.sources {source}")
    paths = {"run_dir": config.run_dir, "data.root": data.root, "data.vocab": data.vocab}
    paths |= {f"data.sources {source}": source.partition(":")[2] for source in data.sources}
    for key, path in paths.items():
        scheme, url, _ = path.partition("://")
        if url and scheme in EXTRAS:
            extra = EXTRAS[scheme]
            require_package(f"{extra}fs", f"'bertjax[{extra}]'", key if path in key else f"{key}={path}")
    if data.segmenter != "none":
        require_package(data.segmenter, "'bertjax[chinese]'", f"data.segmenter={data.segmenter!r}")


def command_with(
    verb: str,
    arguments: argparse.Namespace,
    keys: Mapping[str, str] | None = None,
    *,
    leaving_out: Collection[str] = (),
) -> str:
    """A command for the same recipe with the same overrides, as one line for a shell.

    `keys` replace theirs; those in `leaving_out` are left out.
    """
    keys = keys or {}
    changed = [word for key, value in keys.items() for word in (f"--{key}", value)]
    return shlex.join(
        ["bertjax", verb, arguments.config, *_without(arguments.overrides, {*keys, *leaving_out}), *changed]
    )


def _without(overrides: Sequence[str], keys: Collection[str]) -> list[str]:
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
    from bertjax.text import beam
    from bertjax.text.pool import processes

    if arguments.runner == "beam":
        require_package("apache_beam", "'bertjax[beam]', or leave it out", "--runner beam", "Apache Beam")
        return partial(beam.run_units, options=arguments.behind_dashes, folder=path_of(config.data.root))
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
