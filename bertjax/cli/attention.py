"""`bertjax attention`: a page that shows what each head of a model attends to."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.model_source import add_page, add_source, add_text, one_or_two, page_path
from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.interpret.attention_page import AttentionView


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `attention`."""
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
    from bertjax.convert.sources import open_source
    from bertjax.interpret.attention_page import EXAMPLE, render_attention, view_attention
    from bertjax.interpret.sample_text import sample_text
    from bertjax.storage.files import replace_text
    from bertjax.storage.progress import ProgressLine

    page = page_path(arguments.html)
    sentences = one_or_two(arguments.sentences) if arguments.sentences else EXAMPLE
    if arguments.sample < 2:
        raise ValueError(f"--sample {arguments.sample}: patterns are measured on pairs of sentences; give 2 or more")
    model, _ = open_source(arguments.run)
    sample = sample_text(model, arguments.text, ProgressLine())
    name = arguments.run.rstrip("/")
    view = view_attention(model, name, sentences, sample, arguments.sample, ProgressLine())
    replace_text(page, render_attention(view))
    print(f"measured on {view.pairs:,} pairs of sentences: {view.sample}")
    _print_patterns(view)
    if view.at_cls is not None:
        print(f"{view.at_cls.label} with probability {view.at_cls.probability:.1%}")
    for note in view.missing:
        print(note)
    print(f"page: {page}")
    return 0


def _print_patterns(view: AttentionView) -> None:
    from bertjax.interpret.attention_patterns import PATTERNS, SHOWN_FROM

    width = max(len(pattern.name) for pattern in PATTERNS)
    found = zip(PATTERNS, view.clearest, view.patterns.shares, view.patterns.strengths, strict=True)
    for number, (pattern, best, shares, strengths) in enumerate(found):
        if best is None:
            line = "not measured"
        elif strengths[best] < SHOWN_FROM:
            line = "no head shows it"
        else:
            line = f"layer {best[0] + 1}, head {best[1] + 1}: {shares[best]:.0%} of the attention"
            line += f" ({view.patterns.chances[number]:.0%} if it were even)"
        print(f"  {pattern.name:{width}}  {line}")


VERB = Verb(
    add_arguments,
    run,
    example="bertjax attention runs/quickstart 'I went to the store.' 'At the store, I bought fresh strawberries.'",
    interrupted="no page was written; run the same command again to start over",
)
