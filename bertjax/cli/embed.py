"""`bertjax embed`: texts to vectors, from files to a file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bertjax.cli.encoding import told_encoding
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, TextEncoder, require_trained
from bertjax.embed.outputs import open_output, require_output
from bertjax.embed.texts import count_texts, read_texts
from bertjax.storage.utf8 import ReadCounts
from bertjax.training.progress import Progress, duration


def embed(arguments: argparse.Namespace) -> int:
    """Write the vectors of all texts, and say how many there were and what became of the long ones."""
    output = require_output(arguments.output)
    total = count_texts(arguments.texts, arguments.field)
    encoding = Encoding(**told_encoding(arguments))
    model, untrained = open_source(arguments.model)
    require_trained(encoding, untrained, arguments.model)
    encoder = TextEncoder(model, encoding)
    read, started = ReadCounts(), time.monotonic()
    write = open_output(output, encoder.width, encoding.pooling == "none", model.tokenizer.tokens)
    with write as add, Progress(total, "embed", unit="text") as progress:
        for embedding in encoder.encode(read_texts(arguments.texts, arguments.field, read), progress.update):
            add(embedding)
    _report(encoder, read, output, time.monotonic() - started)
    return 0


def _report(encoder: TextEncoder, read: ReadCounts, output: Path, seconds: float) -> None:
    counts, encoding = encoder.counts, encoder.encoding
    of = "a vector per token" if encoding.pooling == "none" else f"pooling {encoding.pooling}"
    scaled = ", scaled to length 1" if encoding.normalize else ""
    print(f"{counts.texts:,} texts with {counts.tokens:,} tokens to {output}: {encoder.width} numbers, {of}{scaled}")
    if read.replaced_characters:
        print(f"{read.replaced_characters:,} characters were not UTF-8 and became U+FFFD")
    for line in counts.told(encoder.max_length):
        print(line)
    print(f"{duration(seconds)}, {counts.tokens / max(seconds, 1e-9):,.0f} tokens/s")
