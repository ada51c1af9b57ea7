"""`bertjax embed`: write the vectors of texts to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from bertjax.cli.model_source import POOLINGS, add_column, add_encoding, add_overwrite, encoding_options, require_free
from bertjax.cli.verb import Verb


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN", help="a run, one of its checkpoints/<step>, hf:DIR, hf:NAME or tf1:DIR")
    parser.add_argument(
        "texts",
        nargs="*",
        default=["-"],
        metavar="FILE",
        help="one text per line, .csv, .tsv, .jsonl or .parquet, compressed or not; - is standard input (-)",
    )
    parser.add_argument("--output", required=True, metavar="PATH", help="vectors.npy, .jsonl or .parquet, or a FOLDER/")
    add_overwrite(parser)
    add_column(parser)
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale every vector to length 1 (no; for a sentence-transformers folder: as its modules.json)",
    )
    add_encoding(
        parser,
        POOLINGS,
        "how token vectors become one vector; none writes a matrix per text, a row per token (mean; for a "
        "sentence-transformers folder: its own pooling)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the vectors of all texts; print their number and how long texts were cut or split.

    A folder gets Parquet parts with the columns of tables; the same command continues what is unfinished.
    """
    from bertjax.embed.outputs import require_output
    from bertjax.pipeline.embedding import embed, embed_tables

    if arguments.output.endswith("/"):
        folder = Path(arguments.output)
        print(embed_tables(arguments.model, arguments.texts, folder, arguments.field, encoding_options(arguments)))
        return 0
    output = require_output(arguments.output)
    require_free(output, arguments)
    print(embed(arguments.model, arguments.texts, output, arguments.field, encoding_options(arguments)))
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax embed runs/quickstart texts.txt --output vectors.npy --normalize",
    interrupted="nothing was written; run the same command again to start over",
)
