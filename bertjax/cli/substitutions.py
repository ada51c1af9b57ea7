"""`bertjax evaluate RUN SEQUENCE --substitutions A23V`: scores of variants of sequences."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.cli.model_source import output_file
from bertjax.cli.score import write_records

OPTIONS = ("marginal",)  # only for variants

_MARGINALS = ("masked", "wild-type")  # a copy: bertjax.interpret.substitutions imports jax


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--substitutions",
        nargs="+",
        action="extend",
        metavar="VARIANT",
        help="score variants of the sequence TEXT: A23V, A23V:G30D, or tables with a column variant and, without TEXT, "
        "one named sequence",
    )
    parser.add_argument(
        "--marginal",
        choices=_MARGINALS,
        help="what is hidden when a variant is scored: the substituted letters, or nothing, which takes one pass for "
        "all variants of a sequence (masked)",
    )


def score(arguments: argparse.Namespace) -> int:
    """Print the score of each variant, the least likely first."""
    if arguments.file or arguments.field or arguments.pairs or arguments.variant:
        raise ValueError(
            "--substitutions cannot be combined with --file, --column, --pairs or --variant; leave them out"
        )
    if len(arguments.text) > 1:
        raise ValueError(
            f"{len(arguments.text)} sequences with --substitutions: give one, or a table with a column sequence"
        )
    output = output_file(arguments, (".jsonl",), "scores")

    from bertjax.interpret.substitutions import is_table, parse_variant, read_variants
    from bertjax.loaded import open_model
    from bertjax.storage.progress import ProgressLine

    sequence = arguments.text[0] if arguments.text else ""
    variants = []
    for written in arguments.substitutions:
        if is_table(written):
            variants += read_variants(Path(written), sequence)
        elif sequence:
            variants.append(parse_variant(written, sequence))
        else:
            raise ValueError(f"--substitutions {written}: no sequence is given; give it as TEXT")
    model = open_model(arguments.run)
    scores = model.score_variants(variants, arguments.marginal or _MARGINALS[0], ProgressLine())
    for score, variant in sorted(zip(scores, variants, strict=True)):
        print(f"{score:10.3f}  {variant.written}")
    if output is not None:
        records = (
            {"sequence": variant.sequence, "variant": variant.written, "score": score}
            for variant, score in zip(variants, scores, strict=True)
        )
        write_records(output, records)
    return 0
