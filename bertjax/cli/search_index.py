"""Open the index of `bertjax search` and check it against the command line, or build it."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

from bertjax.cli.model_source import encoding_options, print_replaced
from bertjax.convert.sentence_transformers.reader import vector_options
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, TextEncoder, require_trained
from bertjax.run.progress import Progress
from bertjax.run.run_directory import TrainedModel
from bertjax.search.index import Origin, SearchIndex, build_index, has_index, model_fingerprint, open_index
from bertjax.search.records import count_records, read_records
from bertjax.storage.remote import is_remote, path_of
from bertjax.storage.sums import sha256_of_file
from bertjax.storage.utf8 import ReadCounts
from bertjax.tokenization.tokenizer import Tokenizer


def open_or_build_index(arguments: argparse.Namespace) -> tuple[SearchIndex, TextEncoder, Tokenizer]:
    """Open the index, or build it if it does not exist; also returns the encoder for its queries and the tokenizer.

    Raises ValueError for an index of other documents, of another model or of another encoding.
    """
    index = _existing_index(arguments)
    model, untrained = open_source(arguments.model)
    encoder = TextEncoder(model, _encoding(arguments, index, model))
    require_trained(encoder.encoding.pooling, untrained, arguments.model)
    fingerprint = model_fingerprint(model, encoder.encoding.pooling)
    if index is None:
        index = _build_index(arguments, model, encoder, fingerprint)
        encoder = TextEncoder(model, encoder.encoding)  # a new one, so that its counts describe queries only
    elif index.origin.fingerprint != fingerprint:
        raise ValueError(
            f"--index {index.folder} was built with {index.origin.model}, which differs from {arguments.model}; "
            "use that model, or name another folder"
        )
    return index, encoder, model.tokenizer


def _existing_index(arguments: argparse.Namespace) -> SearchIndex | None:
    """The index, or None if it is to be built. Raises ValueError if it has other documents or cannot be built."""
    if is_remote(arguments.index):
        raise ValueError(f"--index {arguments.index}: an index must be a local folder; name one")
    folder = Path(arguments.index)
    if not has_index(folder):
        if not arguments.documents:
            raise ValueError(f"--index {folder}: no index there; give the documents to build it: --documents FILE ...")
        return None
    index = open_index(folder)
    if arguments.documents and (index.origin.files, index.origin.field) != _files(arguments):
        raise ValueError(
            f"--documents {' '.join(arguments.documents)}: index {folder} was built from other documents "
            f"({', '.join(name for name, _ in index.origin.files)}); name another --index, or leave --documents out"
        )
    return index


def _files(arguments: argparse.Namespace) -> tuple[list[list[str]], str | None]:
    return [[Path(path).name, sha256_of_file(path_of(path))] for path in arguments.documents], arguments.field


def _encoding(arguments: argparse.Namespace, index: SearchIndex | None, model: TrainedModel) -> Encoding:
    """The encoding of the index, or of the command line for a new one. Raises ValueError if they differ.

    A new index compares cosines unless --no-normalize is given; its other defaults come from the model's folder.
    """
    options = encoding_options(arguments)
    if index is None:
        return Encoding(**vector_options(model, {"normalize": True} | options))
    # The size of batches does not change vectors.
    sizes = {name: options.pop(name, None) for name in ("batch_tokens", "batch_size")}
    encoding = replace(index.origin.encoding, **sizes)
    built = asdict(encoding)
    for name, value in options.items():
        if built[name] != value:
            raise ValueError(
                f"{name}={value}: index {index.folder} was built with {name}={built[name]}; leave that option out, "
                "or name another --index"
            )
    return encoding


def _build_index(
    arguments: argparse.Namespace, model: TrainedModel, encoder: TextEncoder, fingerprint: str
) -> SearchIndex:
    """Build the index, print its size and notices, and open it."""
    total = count_records(arguments.documents, arguments.field)
    folder, read = Path(arguments.index), ReadCounts()
    encoding = replace(encoder.encoding, max_length=encoder.max_length)
    origin = Origin(arguments.model, fingerprint, encoding, *_files(arguments))
    records = read_records(arguments.documents, arguments.field, read)
    with Progress(total, "index", unit="document") as progress:
        build_index(folder, encoder, model.tokenizer, records, origin, progress.update)
    counts = encoder.counts
    print(
        f"index {folder}: {counts.examples:,} documents with {counts.tokens:,} tokens, {encoder.width} numbers for each"
    )
    print_replaced(read)
    for line in counts.notices(encoder.max_length):
        print(line)
    return open_index(folder)
