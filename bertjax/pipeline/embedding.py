"""Write vectors: of text files to one file, of tables to a folder of Parquet parts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertjax.convert.sentence_transformers.reader import vector_options
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, EncodingOptions, TextCounts, TextEncoder, require_trained
from bertjax.embed.outputs import open_output
from bertjax.embed.texts import count_texts, read_texts
from bertjax.pipeline.table_parts import Annotated, Columns, annotate_tables
from bertjax.run.progress import Progress, duration
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.source import DEFAULT_FIELD


@dataclass(frozen=True, repr=False)
class Embedded:
    """A finished file of vectors."""

    path: Path
    width: int  # numbers in a vector
    encoding: Encoding
    counts: TextCounts  # numbers of texts, and of those that were cut or split
    replaced_characters: int  # bytes of the files that were not UTF-8
    max_length: int
    seconds: float

    def __repr__(self) -> str:
        """Lines with the counts, notices about cut texts, and the speed."""
        counts, encoding = self.counts, self.encoding
        per = "one vector per token" if encoding.pooling == "none" else f"pooling {encoding.pooling}"
        scaled = ", scaled to length 1" if encoding.normalize else ""
        lines = [f"{counts.examples:,} texts with {counts.tokens:,} tokens to {self.path}: {self.width} dims, {per}"]
        lines[0] += scaled
        if self.replaced_characters:
            lines.append(f"{self.replaced_characters:,} characters were not UTF-8 and became U+FFFD")
        lines += counts.notices(self.max_length)
        rate = counts.tokens / max(self.seconds, 1e-9)
        return "\n".join([*lines, f"{duration(self.seconds)}, {rate:,.0f} tokens/s"])


def embed_tables(
    source: str, files: Sequence[str], folder: Path, column: str | None, options: EncodingOptions
) -> Annotated:
    """Write Parquet parts with the input's columns and a column `vector`, as `annotate_tables` does."""
    import pyarrow as pa

    model, untrained = open_source(source)
    encoding = Encoding(**vector_options(model, options))
    if encoding.pooling == "none":
        raise ValueError("--pooling none: a folder has one vector per row; write a matrix per text to a file")
    require_trained(encoding.pooling, untrained, source)
    encoder = TextEncoder(model, encoding)

    def annotate(rows: Sequence[tuple[str, ...]]) -> Columns:
        vectors = [embedding.vectors for embedding in encoder.encode(text for (text,) in rows)]
        flat = np.concatenate(vectors) if vectors else np.empty(0, np.float32)
        return {"vector": pa.FixedSizeListArray.from_arrays(pa.array(flat), encoder.width)}

    job = {"model": source, "step": model.step, "encoding": dataclasses.asdict(encoding)}
    return annotate_tables(files, [column or DEFAULT_FIELD], folder, job, annotate, "embed")


def embed(source: str, files: Sequence[str], output: Path, field: str | None, options: EncodingOptions) -> Embedded:
    """Encode the texts of files in order, and write their vectors; an existing file is replaced at the end.

    `field` is the column or field of a table with the text. Raises ValueError as `read_texts` and `open_source` do.
    """
    total = count_texts(files, field)
    model, untrained = open_source(source)
    encoding = Encoding(**vector_options(model, options))
    require_trained(encoding.pooling, untrained, source)
    encoder = TextEncoder(model, encoding)
    counts, started = ReadCounts(), time.monotonic()
    write = open_output(output, encoder.width, encoding.pooling == "none", model.tokenizer.tokens)
    with write as add, Progress(total, "embed", unit="text") as progress:
        for embedding in encoder.encode(read_texts(files, field, counts), progress.update):
            add(embedding)
    seconds = time.monotonic() - started
    replaced = counts.replaced_characters
    return Embedded(output, encoder.width, encoding, encoder.counts, replaced, encoder.max_length, seconds)
