"""`bertjax inspect`: statistics of a token store and of the rows made from it."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_page, page_path
from bertjax.cli.recipe import KEYS, add_show_config, load_config, shell_command
from bertjax.cli.verb import Verb
from bertjax.config import Config, DataConfig
from bertjax.config.recipes import names_recipe
from bertjax.storage.remote import is_remote, to_path

if TYPE_CHECKING:
    from bertjax.inspect.row_figures import RowKind
    from bertjax.text.store.format import TokenStore

DEFAULT_LENGTHS = (128, 512)
SHORTEST, LONGEST = 8, 1 << 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="STORE|RECIPE", help=f"a token store's directory, or a recipe, which {KEYS}")
    add_show_config(parser)
    add_page(parser)
    parser.add_argument(
        "--length",
        type=int,
        nargs="+",
        action="extend",
        default=[],
        metavar="L",
        help="row lengths in tokens, as in --length 128 512 (these two, or those of the recipe's stages)",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="evaluation texts to look for in the training text: plain text, TSV or JSON Lines, one text per line",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the contents of a store and, if requested, write them as a page."""
    from bertjax.inspect.evaluation_texts import file_texts
    from bertjax.inspect.inspection import inspect_store
    from bertjax.inspect.page import render_inspection
    from bertjax.inspect.terminal_text import render_text
    from bertjax.storage.files import replace_text
    from bertjax.storage.progress import ProgressLine

    page = None if arguments.html is None else page_path(arguments.html)
    for length in arguments.length:
        if not SHORTEST <= length <= LONGEST:
            raise ValueError(f"--length {length}: rows have {SHORTEST} to {LONGEST:,} tokens; give another length")
    store, kinds = _store_and_rows(arguments, arguments.length)
    tokenizer = store.tokenizer()
    evaluations = [file_texts(path, tokenizer) for path in arguments.against]
    inspection = inspect_store(store, kinds, evaluations, ProgressLine())
    print(render_text(inspection))
    if page is not None:
        replace_text(page, render_inspection(inspection))
    print(f"\n{_last_words(arguments, page)}")
    return 0


def _store_and_rows(arguments: argparse.Namespace, lengths: list[int]) -> tuple[TokenStore, list[RowKind]]:
    from bertjax.storage.progress import ProgressLine
    from bertjax.text.open_store import open_store
    from bertjax.text.store.local_copy import open_near

    if _is_store(arguments.config):
        if arguments.overrides:
            raise ValueError(
                f"{arguments.config} is a token store, which takes no overrides ({' '.join(arguments.overrides)}); "
                "name a recipe to change how its rows are made"
            )
        store = open_near(to_path(arguments.config), progress=ProgressLine())
        return store, _rows_at_lengths(Config(), lengths or list(DEFAULT_LENGTHS))
    if not names_recipe(arguments.config):
        raise ValueError(
            f"{arguments.config}: neither the directory of a token store nor a recipe; "
            "`bertjax prepare RECIPE` makes a store and prints where it is"
        )
    config = load_config(arguments)
    store = open_store(config.data, ProgressLine())
    return store, _rows_at_lengths(config, lengths) if lengths else _rows_of_stages(config)


def _is_store(source: str) -> bool:
    return is_remote(source) or Path(source).is_dir()


def _rows_at_lengths(config: Config, lengths: list[int]) -> list[RowKind]:
    """The config's rows at other lengths, with max_predictions for its mask probability."""
    kinds, training = [], config.training
    for length in dict.fromkeys(lengths):
        most = max(1, math.ceil(config.data.mask_probability * length))
        data = replace(config.data, sequence_length=length, max_predictions=most)
        kinds.append(_row_kind(config, "", data, training.seed, training.objectives))
    return kinds


def _row_kind(config: Config, name: str, data: DataConfig, seed: int, objectives: tuple[str, ...]) -> RowKind:
    from bertjax.families.registry import get_family
    from bertjax.inspect.row_figures import RowKind

    return RowKind(name, data, seed, objectives, get_family(config.model.family).template)


def _rows_of_stages(config: Config) -> list[RowKind]:
    """The rows of each stage of the run, with the seed of the stage."""
    if not config.stages:
        return [_row_kind(config, "", config.data, config.training.seed, config.training.objectives)]
    # Imported here, because the schedules of training import jax, which takes seconds.
    from bertjax.training.stages import make_stages

    return [
        _row_kind(config, f"stage {stage.number + 1}", stage.data, stage.seed, stage.training.objectives)
        for stage in make_stages(config)
    ]


def _last_words(arguments: argparse.Namespace, page: Path | None) -> str:
    hint = f"page: {page}" if page else "for a page with plots add --html inspect.html"
    against = "" if arguments.against else "; to look for evaluation texts add --against FILE"
    is_recipe = not _is_store(arguments.config)
    following = (
        shell_command("pretrain", arguments) if is_recipe else "bertjax pretrain RECIPE, with this store's recipe"
    )
    return f"{hint}{against}; next: {following}"


VERB = Verb(
    add_arguments,
    run,
    example="bertjax inspect quickstart --html inspect.html --against my_test_set.tsv",
    interrupted="no page was written; run the same command again to start over",
    takes_keys=True,
)
