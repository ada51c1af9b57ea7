"""`bertjax attention`: a page that shows what each head of a model attends to."""

from __future__ import annotations

import argparse

from bertjax.cli.model_source import add_page, add_source, add_text, one_or_two, page_path
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="one or two sentences (a pair about a store)")
    add_page(parser, default="attention.html")
    parser.add_argument(
        "--sample",
        type=int,
        default=200,
        metavar="N",
        help="number of sentences that the patterns are measured on (%(default)s)",
    )
    add_text(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and print which head shows which pattern."""
    from bertjax.pipeline.attention import attention
    from bertjax.storage.files import replace_text

    page, sentences = page_path(arguments.html), one_or_two(arguments.sentences)
    view = attention(arguments.run, sentences, arguments.text or "", arguments.sample)
    replace_text(page, view.page)
    print(view)
    print(f"page: {page}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax attention runs/quickstart 'I went to the store.' 'At the store, I bought fresh strawberries.'",
    interrupted="no page was written; run the same command again to start over",
)
