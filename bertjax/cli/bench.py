"""`bertjax bench`: how fast this machine trains a recipe, and what limits it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bertjax.cli.recipe import add_recipe, load_config
from bertjax.cli.verb import Verb
from bertjax.config import Config

if TYPE_CHECKING:
    from bertjax.run.bench import MakeRows

_MADE_UP_STEPS = 64  # steps for which the random text must suffice, within these limits
_MADE_UP_TOKENS = (2_000_000, 50_000_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20,
        metavar="S",
        help="duration of each stage's measurement, after compilation (%(default)s)",
    )
    parser.add_argument(
        "--made-up", action="store_true", help="use random tokens even if the recipe's text is available"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Measure every stage of a recipe and print its figures."""
    from bertjax.report.bench_lines import as_json, machine_line, stage_text, total_line
    from bertjax.run.bench import bench
    from bertjax.run.checks import preflight
    from bertjax.runtime.host_memory import keep_freed_memory
    from bertjax.storage.files import replace_text

    keep_freed_memory()
    config = preflight(load_config(arguments))
    if arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds}: give a time above 0")
    config, make_rows, text = open_rows(config, arguments.made_up)
    print(f"\ntext: {text}", flush=True)
    machine, figures = bench(config, make_rows, arguments.seconds)
    print("\n".join([machine_line(machine), *map(stage_text, figures), total_line(figures)]))
    if arguments.json:
        replace_text(Path(arguments.json), json.dumps(as_json(config, text, machine, figures), indent=2) + "\n")
        print(f"written to {arguments.json}")
    return 0


def open_rows(config: Config, made_up: bool) -> tuple[Config, MakeRows, str]:
    """Return the config with its vocabulary size, a function that makes its rows, and a description of their text.

    Without the recipe's text, or with `made_up`, rows hold random tokens. A run that has started in the recipe's
    directory keeps its own text, even if the sources have changed since.
    """
    from bertjax.input.made_up_text import ABOUT, made_up_batches
    from bertjax.run.run_data import open_data
    from bertjax.run.run_directory import own_data_fingerprint
    from bertjax.storage.progress import ProgressLine
    from bertjax.text.trained_vocabulary import vocabulary_size
    from bertjax.training.stages import make_stages

    missing = "--made-up" if made_up else "" if config.data.store else missing_text_reason(config.data.sources)
    if missing:
        size, vocabulary = vocabulary_size(config.data)
        steps = max(stage.tokens_per_step for stage in make_stages(config))
        least, most = _MADE_UP_TOKENS
        tokens = min(max(_MADE_UP_STEPS * steps, least), most)
        config = replace(config, model=replace(config.model, vocab_size=size))
        description = f"{ABOUT}, {tokens:,} of them ({missing}); {vocabulary}"
        return (
            config,
            lambda stage: made_up_batches(stage.data, stage.seed, tokens, stage.training.objectives),
            description,
        )
    content = open_data(config, ProgressLine(), own_data_fingerprint(config))
    config = replace(config, model=content.tokenizer.fit_model(config.model))
    return (
        config,
        lambda stage: content.train(
            stage.data, stage.seed, stage.training.objectives, stage.training.global_batch_size
        ),
        f"{content.name}, {content.size('train')}",
    )


def missing_text_reason(sources: Sequence[str]) -> str:
    """Return why a recipe's text is not available; empty if it is."""
    from bertjax.text.sources.registry import parse_source, source_files

    if not sources:
        return "the recipe names no data.sources"
    for source in sources:
        try:
            source_files(parse_source(source))
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return f"no text: {str(error).splitlines()[0].partition('. ')[0]}"
    return ""


VERB = Verb(
    add_arguments,
    run,
    example="bertjax bench bert_one_gpu",
    interrupted="no figures were written; run the same command again to start over",
    takes_keys=True,
)
