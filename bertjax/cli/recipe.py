"""What the verbs with a recipe share: the config with its overrides, the runner, and the next command."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bertjax.config import Config, differences, from_dict, load_recipe, override, render, render_all, validate
from bertjax.config.plugins import use_plugins
from bertjax.config.rescale import keys_given, rescale, with_lengths
from bertjax.storage.json_documents import read_json
from bertjax.storage.lean_import import require_package
from bertjax.storage.remote import EXTRAS, to_path

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


def add_show_config(parser: argparse._ActionsContainer) -> None:
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
    """Return the config with these loggers added, each once."""
    return replace(config, log=tuple(dict.fromkeys((*config.log, *names))))


def with_plugins(config: C, arguments: argparse.Namespace) -> C:
    """Return the config with the plug-ins of `--plugin` added and all of them imported. Raises as `use_plugins`."""
    return replace(config, plugins=use_plugins((*config.plugins, *arguments.plugin)))


def load_config(arguments: argparse.Namespace) -> Config:
    """Return the recipe with its overrides, validated, after printing the changed settings."""
    config, settings_text = resolve_config(arguments)
    validate(config)
    print(settings_text, flush=True)
    return config


def resolve_config(arguments: argparse.Namespace) -> tuple[Config, str]:
    """Return the recipe with its overrides, and the text of the changed settings, which only one process prints.

    If `training.steps` changes, the settings that depend on it change in proportion, unless they are given too.
    """
    recipe = load_recipe(arguments.config)
    unscaled = override(recipe, arguments.overrides, f"bertjax {arguments.verb} {arguments.config}")
    unscaled = with_plugins(with_loggers(unscaled, getattr(arguments, "log", ())), arguments)
    config = scale_to_steps(unscaled, recipe, keys_given(arguments.overrides))
    _require_packages(config)
    text = render(unscaled, recipe)
    if following := differences(config, unscaled):
        settings = ", ".join(f"{key}={new}" for key, (_, new) in following.items() if not isinstance(new, list))
        stages = (
            [f"stages from steps {', '.join(str(stage.start) for stage in config.stages)}"] if config.stages else []
        )
        reason = "scaled with it" if config.training.steps != recipe.training.steps else "kept from the existing run"
        text += f"\n  {reason}: {', '.join([*filter(None, [settings]), *stages])}"
    return config, f"{text}\n{render_all(config)}" if arguments.show_config else text


def scale_to_steps(config: Config, recipe: Config, user_keys: Collection[str]) -> Config:
    """Scale the settings that depend on the number of steps, if that number is not the recipe's.

    A run with a checkpoint keeps the schedule that it began with, so that it can be trained for longer, and resumed.
    """
    steps = config.training.steps
    if steps <= len(config.stages):
        return config
    if steps != recipe.training.steps:
        unchanged = replace(config, training=replace(config.training, steps=recipe.training.steps))
        config = rescale(unchanged, steps, user_keys)
    # A run with a time budget keeps its number of steps too; see `keep_decided_length`.
    begun = None if config.training.budget else _saved_config(config)
    return config if begun is None else with_lengths(config, begun, user_keys)


def _saved_config(config: Config) -> Config | None:
    """The config of a run with a checkpoint in the run's directory; None if there is none or it cannot be read."""
    directory = to_path(config.directory)
    try:
        checkpoints = directory / "checkpoints"
        if not checkpoints.is_dir() or not any(entry.name.isdecimal() for entry in checkpoints.iterdir()):
            return None
        return from_dict(read_json(directory / "config.json"))
    except (OSError, ValueError):
        return None


def _require_packages(config: Config) -> None:
    """Raise ModuleNotFoundError for the first missing package that a config needs."""
    from bertjax.text.filters.registry import FILTERS
    from bertjax.text.sources.registry import KINDS

    data = config.data
    for name in data.filters:
        if name in FILTERS and (needs := FILTERS[name].needs):
            require_package(*needs, f"data.filters={name!r}")
    for source in data.sources:
        if (kind := KINDS.get(source.partition(":")[0])) and kind.needs:
            require_package(*kind.needs, f"data.sources {source}")
    paths = {"run_dir": config.run_dir, "data.root": data.root, "data.vocab": data.vocab}
    paths |= {f"data.sources {source}": source.partition(":")[2] for source in data.sources}
    for key, path in paths.items():
        scheme, url, _ = path.partition("://")
        if url and scheme in EXTRAS:
            module, extra = EXTRAS[scheme]
            require_package(module, f"'bertjax[{extra}]'", key if path in key else f"{key}={path}")
    if data.segmenter != "none":
        require_package(data.segmenter, "'bertjax[chinese]'", f"data.segmenter={data.segmenter!r}")


def shell_command(
    verb: str,
    arguments: argparse.Namespace,
    keys: Mapping[str, str] | None = None,
    *,
    leaving_out: Collection[str] = (),
) -> str:
    """Return a shell command for the same recipe and overrides.

    `keys` replace overrides; keys in `leaving_out` are left out.
    """
    keys = keys or {}
    changed = [word for key, value in keys.items() for word in (f"--{key}", value)]
    plugins = [word for plugin in arguments.plugin for word in ("--plugin", plugin)]
    overrides = _drop_keys(arguments.overrides, {*keys, *leaving_out})
    return shlex.join(["bertjax", verb, arguments.config, *plugins, *overrides, *changed])


def _drop_keys(overrides: Sequence[str], keys: Collection[str]) -> list[str]:
    """Return the overrides without these keys and their values."""
    words, dropping = [], False
    for word in overrides:
        if word.startswith("--"):
            dropping = word[2:].partition("=")[0].replace("_", "-") in keys
        if not dropping:
            words.append(word)
    return words


def add_runner(parser: argparse.ArgumentParser) -> None:
    """Add the option `--runner`."""
    parser.add_argument(
        "--runner",
        choices=("processes", "beam"),
        default="processes",
        help="processes of this machine, or Apache Beam, whose options follow --, as in "
        "--runner beam -- --runner=FlinkRunner --flink_master=HOST:8081 (%(default)s)",
    )


def open_runner(arguments: argparse.Namespace, config: Config) -> Runner:
    """Return the runner that `--runner` names. Raises ValueError for Beam options without Beam."""
    from bertjax.text import beam
    from bertjax.text.pool import processes

    if arguments.runner == "beam":
        require_package("apache_beam", "'bertjax[beam]', or leave it out", "--runner beam", "Apache Beam")
        return partial(beam.run_units, options=arguments.behind_dashes, folder=to_path(config.data.root))
    if arguments.behind_dashes:
        raise ValueError(
            f"-- {' '.join(arguments.behind_dashes)}: the words after -- are options of Apache Beam; add --runner beam"
        )
    return processes(config.data.workers)


def require_processes(arguments: argparse.Namespace, option: str) -> None:
    """Raise ValueError if Beam is combined with an option that only local processes support."""
    if arguments.runner != "processes" or arguments.behind_dashes:
        raise ValueError(f"{option} runs in processes of this machine; leave out --runner and the words after --")


def runner_arguments(arguments: argparse.Namespace) -> str:
    """Return the arguments of a command that uses the same runner."""
    if arguments.runner == "processes":
        return ""
    return f" --runner {arguments.runner} " + shlex.join(["--", *arguments.behind_dashes])
