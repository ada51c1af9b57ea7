"""`bertjax inspect`: what a token store holds, and what rows are made of it."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

from bertjax.cli.page_path import page_path
from bertjax.cli.recipe import configured
from bertjax.config import Config, DataConfig, validate
from bertjax.inspect.evaluation_texts import file_texts
from bertjax.inspect.inspection import inspect_store
from bertjax.inspect.page import render_inspection
from bertjax.inspect.row_figures import RowKind
from bertjax.inspect.text import render_text
from bertjax.storage.files import replace_text
from bertjax.storage.progress import ProgressLine
from bertjax.storage.remote import is_remote, place_of
from bertjax.text.store.format import TokenStore
from bertjax.text.store.local_copy import open_near, open_store

DEFAULT_LENGTHS = (128, 512)
SHORTEST, LONGEST = 8, 1 << 16


def inspect(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Print what is in a store and, if asked for, write it as a page."""
    page = None if arguments.html is None else page_path(arguments.html)
    lengths = [_checked_length(length) for length in arguments.length]
    store, kinds = _store_and_rows(arguments, overrides, lengths)
    tokenizer = store.tokenizer()
    evaluations = [file_texts(path, tokenizer) for path in arguments.against]
    found = inspect_store(store, kinds, evaluations, ProgressLine())
    print(render_text(found))
    if page is not None:
        replace_text(page, render_inspection(found))
    print(f"\n{_last_words(arguments, page)}")
    return 0


def _store_and_rows(
    arguments: argparse.Namespace, overrides: list[str], lengths: list[int]
) -> tuple[TokenStore, list[RowKind]]:
    if _is_store(arguments.config):
        if overrides:
            raise ValueError(
                f"{arguments.config} is a token store, which takes no overrides ({' '.join(overrides)}); "
                "name a recipe to change how its rows are made"
            )
        store = open_near(place_of(arguments.config), progress=ProgressLine())
        return store, _rows_of(Config(), lengths or list(DEFAULT_LENGTHS))
    if ".py" not in arguments.config:
        raise ValueError(
            f"{arguments.config}: neither the directory of a token store nor a recipe, a .py file; "
            "`bertjax prepare RECIPE` makes a store and says where it is"
        )
    config = validate(configured(arguments, overrides))
    store = open_store(config.data, ProgressLine())
    return store, _rows_of(config, lengths) if lengths else _rows_of_stages(config)


def _is_store(named: str) -> bool:
    return is_remote(named) or Path(named).is_dir()


def _rows_of(config: Config, lengths: list[int]) -> list[RowKind]:
    """The config's rows at other lengths, with as many predictions as its share of masked tokens allows for."""
    return [RowKind("", _at_length(config.data, length), config.training.seed) for length in dict.fromkeys(lengths)]


def _at_length(data: DataConfig, length: int) -> DataConfig:
    return replace(data, sequence_length=length, max_predictions=max(1, math.ceil(data.mask_probability * length)))


def _rows_of_stages(config: Config) -> list[RowKind]:
    """The rows of each stage of the run, with the stage's own draws."""
    if not config.stages:
        return [RowKind("", config.data, config.training.seed)]
    # Imported here because the trainer's schedules import jax, which takes seconds.
    from bertjax.training.stages import stages_of

    return [RowKind(f"stage {stage.number + 1}", stage.data, stage.seed) for stage in stages_of(config)]


def _checked_length(length: int) -> int:
    if not SHORTEST <= length <= LONGEST:
        raise ValueError(f"--length {length}: rows have {SHORTEST} to {LONGEST:,} tokens; give another length")
    return length


def _last_words(arguments: argparse.Namespace, page: Path | None) -> str:
    is_recipe = not _is_store(arguments.config)
    shown = f"page: {page}" if page else "the same with plots: add --html inspect.html"
    against = "" if arguments.against else "; an evaluation's files: add --against FILE"
    following = (
        f"bertjax pretrain {arguments.config}" if is_recipe else "bertjax pretrain RECIPE, with this store's recipe"
    )
    return f"{shown}{against}; next: {following}"
