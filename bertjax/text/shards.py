"""One unit of text into one shard of each split: the pure function that the processes of `prepare` run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.text.corpus import Unit, draws
from bertjax.text.documents import Document, ReadCounts
from bertjax.text.sources import read_documents
from bertjax.text.store import SPLITS
from bertjax.text.store_writer import ShardWriter, publish, write_durably
from bertjax.tokenization.wordpiece import WordPiece

_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class ShardJob:
    """What is the same for every unit of a store."""

    folder: Path
    inputs: str  # fingerprint of everything the store is made from
    vocab: Path
    lowercase: bool
    strip_accents: bool
    held_out: float


def make_shards(unit: Unit, job: ShardJob) -> dict[str, Any]:
    """Read, split, encode and write a unit; return its record.

    The record has `shards` (split -> the shard's record, or None where no document fell into the split), `reading`
    (the reader's counts), `text_bytes` and `unknown_tokens`. It is put beside the shards last, so that a unit with a
    record is a finished one. Two processes may make one unit at a time, as those of a cluster do.
    """
    tokenizer = _tokenizer(job.vocab, job.lowercase, job.strip_accents)
    reading = ReadCounts()
    text_bytes = unknown = 0
    with ExitStack() as unfinished:
        scratch = Path(unfinished.enter_context(tempfile.TemporaryDirectory(prefix=f"{_name(unit)}-", dir=job.folder)))
        writers = {split: ShardWriter(scratch, f"{split}-{unit.number:05}", tokenizer.vocab_size) for split in SPLITS}
        for writer in writers.values():
            unfinished.callback(writer.discard)
        for batch in _batches(unit, reading):
            ids = _write_batch(batch, writers, tokenizer, job.held_out)
            text_bytes += sum(len(document.text.encode()) for document in batch)
            unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
        shards = {split: writer.finish() if writer.documents else None for split, writer in writers.items()}
        record = {"inputs": job.inputs, "shards": shards, "reading": dataclasses.asdict(reading)}
        record |= {"text_bytes": text_bytes, "unknown_tokens": unknown}
        write_durably(scratch / _record_path(unit, job).name, json.dumps(record).encode())
        for name in [*_files_of(record), _record_path(unit, job).name]:
            publish(scratch / name, job.folder)
    return record


def finished_shards(unit: Unit, job: ShardJob) -> dict[str, Any] | None:
    """The record of a unit that an earlier run finished for the same inputs; None if it has to be made."""
    try:
        record = json.loads(_record_path(unit, job).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    files = {name: job.folder / name for name in _files_of(record)}
    whole = all(path.is_file() and path.stat().st_size == _files_of(record)[name] for name, path in files.items())
    return record if whole and record["inputs"] == job.inputs else None


def remove_records(job: ShardJob) -> None:
    """Remove what a finished store has no use for: the units' records, and what processes that were killed left."""
    for path in job.folder.glob("unit-*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _record_path(unit: Unit, job: ShardJob) -> Path:
    return job.folder / f"{_name(unit)}.json"


def _name(unit: Unit) -> str:
    return f"unit-{unit.number:05}"


def _files_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Name -> bytes of the files of a unit's shards."""
    shards = [shard for shard in record["shards"].values() if shard]
    return {file["name"]: file["bytes"] for shard in shards for file in shard["files"].values()}


@lru_cache(maxsize=1)
def _tokenizer(vocab: Path, lowercase: bool, strip_accents: bool) -> WordPiece:
    """Loaded once in a process: it remembers the words it has seen."""
    return WordPiece.load(vocab, lowercase, strip_accents)


def _batches(unit: Unit, reading: ReadCounts) -> Iterator[list[Document]]:
    held: list[Document] = []
    size = 0
    for file in unit.files:
        for document in read_documents(file, reading):
            held.append(document)
            size += len(document.text)
            if size >= _BATCH_CHARACTERS:
                yield held
                held, size = [], 0
    if held:
        yield held


def _write_batch(
    documents: list[Document], writers: dict[str, ShardWriter], tokenizer: WordPiece, held_out: float
) -> np.ndarray:
    """Encode documents and append each to the writer of its split; return all ids."""
    sentences = [document.sentences() for document in documents]
    ids, lengths = tokenizer.encode([sentence for group in sentences for sentence in group])
    document_of = np.repeat(np.arange(len(documents)), [len(group) for group in sentences])
    evaluated = np.array([draws(document.text)[0] < held_out for document in documents])
    for split, chosen in (("train", ~evaluated), ("held_out", evaluated)):
        # Neither a sentence without tokens nor a document without sentences goes into a store.
        kept = chosen[document_of] & (lengths > 0)
        per_document = np.bincount(document_of[kept], minlength=len(documents))
        writers[split].add(ids[np.repeat(kept, lengths)], lengths[kept], per_document[per_document > 0])
    return ids
