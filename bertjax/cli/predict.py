"""`bertjax predict`: apply a fine-tuned model to one input, or to the rows of tables."""

from __future__ import annotations

import argparse

from bertjax.cli.verb import Verb, require_unused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a fine-tuned run, or hf:DIR or hf:NAME of a fine-tuned model")
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="the input of the task: one text, two texts (as a question and its text), or a start and its endings",
    )
    parser.add_argument(
        "--files",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="predict for the rows of .parquet, .jsonl, .csv or .tsv files, 'KIND:GLOB' or hf:NAME instead",
    )
    parser.add_argument(
        "--column",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="columns of --files with the texts of a row (text)",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="folder for Parquet parts with the columns of --files and the predictions; the same command continues "
        "what is unfinished, and machines that share the folder divide the rows",
    )
    parser.add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="for questions without an answer: return none where its score exceeds that of the best answer by more "
        "than X (as in fine-tuning; a model for squad always answers)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the outputs of a fine-tuned model for one input, the likeliest first, or write those for tables."""
    if bool(arguments.files) == bool(arguments.text):
        raise ValueError("give an input, or --files with tables")
    if bool(arguments.files) != bool(arguments.output):
        raise ValueError("--files and --output go together: tables, and a folder for their rows with predictions")
    if arguments.files:
        from pathlib import Path

        from bertjax.pipeline.predicting import predict_tables

        folder, threshold = Path(arguments.output), arguments.null_threshold
        print(predict_tables(arguments.run, arguments.files, arguments.column or ["text"], folder, threshold))
        return 0
    require_unused(arguments, ("column",), "--files")
    from bertjax.loaded import open_model

    model = open_model(arguments.run)
    for line in model.describe(arguments.text, null_threshold=arguments.null_threshold):
        print(line)
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax predict runs/squad 'Who wrote it?' 'The letters were written by Ada.'",
    interrupted="parts of --output are kept; run the same command again",
)
