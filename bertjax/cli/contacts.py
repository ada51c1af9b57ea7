"""`bertjax evaluate RUN --contacts TABLE`: contacts of residues, predicted from attention."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.cli.model_source import output_file
from bertjax.cli.score import write_records


def add_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--contacts",
        metavar="TABLE",
        help="fit a regression of contacts on attention, from a table with the columns sequence and contacts "
        "(3-17 5-30), measure it on the second half of the table, and predict the contacts of each sequence TEXT",
    )


def predict(arguments: argparse.Namespace) -> int:
    """Print how precise contacts are, and the likeliest ones of each sequence."""
    if arguments.file or arguments.field or arguments.pairs or arguments.variant or arguments.substitutions:
        raise ValueError(
            "--contacts cannot be combined with --file, --column, --pairs, --variant or --substitutions; leave them out"
        )
    output = output_file(arguments, (".jsonl",), "scores")
    if output is not None and not arguments.text:
        raise ValueError("--output with --contacts writes the contacts of sequences; give one as TEXT")

    from bertjax.convert.sources import open_source
    from bertjax.interpret.contacts import (
        fit_contacts,
        likeliest_pairs,
        measure_contacts,
        predict_contacts,
        read_contacts,
    )
    from bertjax.storage.progress import ProgressLine

    path, progress = Path(arguments.contacts), ProgressLine()
    known = read_contacts(path)
    if len(known) < 2:
        raise ValueError(f"--contacts {path}: {len(known)} sequences; give 2 or more, as half of them are measured")
    model, _ = open_source(arguments.run)
    fitted, measured = known[: (len(known) + 1) // 2], known[(len(known) + 1) // 2 :]
    regression = fit_contacts(model, fitted, progress)
    probabilities = [*predict_contacts(model, regression, [one.sequence for one in measured], progress)]
    print(f"fitted on the first {len(fitted):,} sequences, measured on the other {len(measured):,}")
    for one in measure_contacts(measured, probabilities):
        print(
            f"{one.apart} or more letters apart: precision {one.top:.1%} for as many pairs as letters, "
            f"{one.as_known:.1%} for as many pairs as contacts; {one.base:.1%} of all pairs touch"
        )
    records = []
    for sequence, predicted in zip(
        arguments.text, predict_contacts(model, regression, arguments.text, progress), strict=True
    ):
        print(sequence)
        pairs = likeliest_pairs(predicted, len(sequence))
        for first, second in pairs.tolist():
            print(f"{predicted[first, second]:10.3f}  {first + 1}-{second + 1}")
        contacts = [[first + 1, second + 1, float(predicted[first, second])] for first, second in pairs.tolist()]
        records.append({"sequence": sequence, "contacts": contacts})
    if output is not None:
        write_records(output, records)
    return 0
