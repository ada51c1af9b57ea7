"""`bertjax embed`: write the vectors of texts to a file."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from bertjax.cli.model_source import (
    POOLINGS,
    add_encoding,
    add_overwrite,
    encoding_options,
    print_replaced,
    require_free,
)
from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from pathlib import Path

    from bertjax.embed.encoder import TextEncoder
    from bertjax.storage.utf8 import ReadCounts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `embed`."""
    parser.add_argument("model", metavar="RUN", help="a run, one of its checkpoints/<step>, hf:DIR, hf:NAME or tf1:DIR")
    parser.add_argument(
        "texts",
        nargs="*",
        default=["-"],
        metavar="FILE",
        help="one text per line, .csv, .tsv, .jsonl or .parquet, compressed or not; - is standard input (-)",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="vectors.npy, .jsonl or .parquet")
    add_overwrite(parser)
    parser.add_argument(
        "--column",
        "--field",
        dest="field",
        metavar="NAME",
        help="column or field of a .csv, .tsv, .jsonl or .parquet with the text (text); standard input is then .jsonl",
    )
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
    """Write the vectors of all texts; print their number and how long texts were cut or split."""
    from bertjax.convert.sentence_transformers.reader import vector_options
    from bertjax.convert.sources import open_source
    from bertjax.embed.encoder import Encoding, TextEncoder, require_trained
    from bertjax.embed.outputs import open_output, require_output
    from bertjax.embed.texts import count_texts, read_texts
    from bertjax.run.progress import Progress
    from bertjax.storage.utf8 import ReadCounts

    output = require_output(arguments.output)
    require_free(output, arguments)
    total = count_texts(arguments.texts, arguments.field)
    model, untrained = open_source(arguments.model)
    encoding = Encoding(**vector_options(model, encoding_options(arguments)))
    require_trained(encoding.pooling, untrained, arguments.model)
    encoder = TextEncoder(model, encoding)
    read, started = ReadCounts(), time.monotonic()
    write = open_output(output, encoder.width, encoding.pooling == "none", model.tokenizer.tokens)
    with write as add, Progress(total, "embed", unit="text") as progress:
        for embedding in encoder.encode(read_texts(arguments.texts, arguments.field, read), progress.update):
            add(embedding)
    _report(encoder, read, output, time.monotonic() - started)
    return 0


def _report(encoder: TextEncoder, read: ReadCounts, output: Path, seconds: float) -> None:
    from bertjax.run.progress import duration

    counts, encoding = encoder.counts, encoder.encoding
    per = "one vector per token" if encoding.pooling == "none" else f"pooling {encoding.pooling}"
    scaled = ", scaled to length 1" if encoding.normalize else ""
    print(f"{counts.examples:,} texts with {counts.tokens:,} tokens to {output}: {encoder.width} dims, {per}{scaled}")
    print_replaced(read)
    for line in counts.notices(encoder.max_length):
        print(line)
    print(f"{duration(seconds)}, {counts.tokens / max(seconds, 1e-9):,.0f} tokens/s")


VERB = Verb(
    add_arguments,
    run,
    example="bertjax embed runs/quickstart texts.txt --output vectors.npy --normalize",
    interrupted="nothing was written; run the same command again to start over",
)
