"""`bertjax recipes`: list the recipes with size, machine and time, describe one, or copy one to change it."""

from __future__ import annotations

import argparse
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bertjax.cli.verb import Verb
from bertjax.config.recipes import RECIPES, describe_recipe, load_recipe, recipe_file, recipes, variant_names
from bertjax.config.run import Config
from bertjax.storage.terminal import bold, first_names

_INDENT, _WIDTH = "    ", 100
_MOST_VARIANTS = 8  # variants to list by name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "show", "copy"),
        default="list",
        help="list all, describe one and print its file, or copy one to change it (%(default)s)",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the recipe to show or copy")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file to write (NAME.py)")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def run(arguments: argparse.Namespace) -> int:
    """List the recipes, or show or copy one. Raises ValueError for an unknown name or an existing file."""
    if arguments.action != "copy" and (arguments.file or arguments.overwrite):
        raise ValueError(
            f"{arguments.action}: it writes no file; leave {arguments.file or '--overwrite'} out, or use copy"
        )
    if arguments.action == "list" and arguments.name:
        raise ValueError(f"list {arguments.name}: it lists all; bertjax recipes show {arguments.name} describes one")
    if arguments.action == "list":
        print(*_table(tuple(recipes())), sep="\n")
        print("\nbertjax recipes show NAME describes one, bertjax pretrain NAME starts one,")
        print("bertjax recipes copy NAME makes a copy to change.")
        return 0
    if not arguments.name:
        raise ValueError(f"{arguments.action}: NAME is missing; bertjax recipes lists the names")
    source, variant = recipe_file(arguments.name)
    if variant is not None:
        load_recipe(arguments.name)  # raises for one that the recipe does not have
    if arguments.action == "show":
        name = source.stem if source.parent == RECIPES else arguments.name.partition(":")[0]
        if name in tuple(recipes()):
            print(f"{_describe(name)}\n\n{bold(str(source.name))}")
        print(source.read_text(encoding="utf-8"), end="")
        return 0
    target = _target(arguments, source)
    from bertjax.storage.files import replace_text

    replace_text(target, source.read_text(encoding="utf-8"))
    path = target if target.is_absolute() or len(target.parts) > 1 else f"./{target}"
    print(f"copied to {target}\nnext: bertjax pretrain {shlex.quote(f'{path}:{variant}' if variant else str(path))}")
    return 0


def _target(arguments: argparse.Namespace, source: Path) -> Path:
    target = Path(arguments.file or source.name)
    if target.is_dir():
        target /= source.name
    if target.suffix != ".py":
        raise ValueError(f"{target}: a recipe is a Python file; write {target}.py")
    if not target.parent.is_dir():
        raise ValueError(f"{target}: there is no folder {target.parent}; make it, or name another file")
    if target.exists() and not arguments.overwrite:
        raise ValueError(f"{target} exists; add --overwrite to replace it, or name another file")
    return target


def _table(names: Sequence[str]) -> list[str]:
    """Return a line for each recipe: name, layers and hidden size, tokens of a run, machine and time."""
    rows = [("recipe", "network", "tokens", "machine and time")]
    for name in names:
        config = load_recipe(name)
        time = describe_recipe(name).sections.get("Time", "see bertjax plan")
        network = f"{config.model.num_hidden_layers} x {config.model.hidden_size}"
        rows.append((name, network, _tokens(config), time))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [bold(lines[0]), *lines[1:]]


def _tokens(config: Config) -> str:
    """The tokens of a run, padding included, in short: 4.9 M, 43 B."""
    stages, training = config.stages, config.training
    starts = [0, *(stage.start or 0 for stage in stages)]
    sizes = [(training.global_batch_size, config.data.sequence_length)]
    for stage in stages:
        sizes.append((stage.global_batch_size or sizes[-1][0], stage.sequence_length or sizes[-1][1]))
    ends = [*starts[1:], training.steps]
    total = sum((end - start) * rows * length for start, end, (rows, length) in zip(starts, ends, sizes, strict=True))
    total = float(f"{total:.3g}")  # rounded first, so that 999.9 B is 1 T
    scale, unit = (1e12, "T") if total >= 1e12 else (1e9, "B") if total >= 1e9 else (1e6, "M")
    return f"{total / scale:.3g} {unit}"


def _describe(name: str) -> str:
    """Return a recipe's entry in the list: title, size, cost, and what it reproduces."""
    description, variants = describe_recipe(name), variant_names(name)
    rows = {"size": _size(load_recipe(name)), "cost": description.sections.get("Cost", "")}
    rows["reproduces"] = description.sections.get("Reproduces", "").partition(" Variants: ")[0]
    if variants:
        names = first_names([f"{name}:{variant}" for variant in variants], _MOST_VARIANTS)
        rows["variants"] = f"{names}; without one: {variants[0]}"
    return "\n".join(
        [_wrap(f"{name}: {description.title}", ""), *(_row(key, text) for key, text in rows.items() if text)]
    )


def _size(config: Config) -> str:
    model, data = config.model, config.data
    lengths = dict.fromkeys((data.sequence_length, *(stage.sequence_length for stage in config.stages)))
    rows = " and ".join(str(length) for length in lengths if length)
    return (
        f"{model.num_hidden_layers} layers, hidden size {model.hidden_size}; {config.training.steps:,} steps of "
        f"{config.training.global_batch_size:,} rows of {rows} tokens"
    )


def _row(key: str, text: str) -> str:
    """Return a line about a recipe: the first sentence, and more as long as they fit into two lines."""
    summary, *others = re.split(r"\. (?=[A-Z`])", text)
    for sentence in others:
        if len(summary) + len(sentence) > 2 * (_WIDTH - 20):
            break
        summary = f"{summary}. {sentence}"
    return _wrap(f"{_INDENT}{key + ':':12}{summary.rstrip('.')}", " " * (len(_INDENT) + 12))


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


VERB = Verb(
    add_arguments,
    run,
    example="bertjax recipes copy bert_mini my_recipe.py",
    interrupted="nothing was written; run the same command again",
)
