"""`bertjax plan`: estimate memory, time and cost of a recipe on a machine that need not be available."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from bertjax.cli.model_source import add_page, page_path
from bertjax.cli.recipe import add_recipe, load_config
from bertjax.cli.verb import Verb, require_unused
from bertjax.plan.topologies import LOCAL, parse_name, set_environment

DOES_NOT_FIT = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--topology",
        metavar="NAME",
        help="v4:8x8x8, v5e:16x16, v5p:8x8x8, v6e:16x16, tpu7x:4x4x4; GPUs h100:8 or h100:8x8 (hosts x GPUs of each), "
        "h200:…, b200:…; or local, the devices of this machine",
    )
    what.add_argument(
        "--tokens", metavar="N", help="plan the preparation of N tokens of text instead, such as 300G or 2T"
    )
    parser.add_argument("--hosts", type=int, metavar="N", help="hosts that prepare the text (1)")
    parser.add_argument("--cores", type=int, metavar="N", help="cores of each of them (as this machine)")
    parser.add_argument("--slices", type=int, metavar="N", help="TPU slices of that shape (1)")
    parser.add_argument("--price", type=float, metavar="P", help="price of one chip for one hour, in any currency")
    parser.add_argument("--stage", type=int, metavar="N", help="plan this stage only, from 1")
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="search meshes, rematerialisation and microbatches for the best that fits",
    )
    add_page(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan and, if requested, write it as a page. Returns 3 if the recipe does not fit."""
    if arguments.tokens is not None:
        require_unused(arguments, ("slices", "price", "stage", "suggest", "html"), "--topology")
        return _plan_preparation(arguments)
    require_unused(arguments, ("hosts", "cores"), "--tokens")
    slices = 1 if arguments.slices is None else arguments.slices
    if arguments.topology != LOCAL:
        parse_name(arguments.topology, slices)
    page = None if arguments.html is None else page_path(arguments.html)
    with tempfile.TemporaryDirectory(prefix="bertjax-plan-") as folder:
        # jax reads its environment when it is imported, so everything that imports it comes after this line.
        set_environment(arguments.topology, Path(folder))
        from bertjax.plan.answer import answer

        config = load_config(arguments)
        result = answer(
            config,
            arguments.topology,
            slices,
            stage=arguments.stage,
            price=arguments.price,
            suggests=arguments.suggest,
            say=partial(print, file=sys.stderr, flush=True),
        )
    print(result.text)
    if page is not None:
        from bertjax.plan.answer import render_plan
        from bertjax.storage.files import replace_text

        replace_text(page, render_plan(result))
        print(f"\npage: {page}")
    return 0 if result.plan.fits else DOES_NOT_FIT


def _plan_preparation(arguments: argparse.Namespace) -> int:
    """Print the cost of preparing a number of tokens."""
    from bertjax.plan.figures import as_text
    from bertjax.plan.preparation import parse_tokens, preparation_table
    from bertjax.text.pool import cores

    tokens = parse_tokens(arguments.tokens)
    data = load_config(arguments).data
    hosts = 1 if arguments.hosts is None else arguments.hosts
    cores_per_host = cores() if arguments.cores is None else arguments.cores
    print(as_text(preparation_table(data, tokens, hosts, cores_per_host)))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax plan bert_large --topology v5e:16x16 --price 1.2",
    interrupted="no page was written; run the same command again to start over",
    takes_keys=True,
)
