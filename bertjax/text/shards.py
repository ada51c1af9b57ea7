"""One unit of text into one shard of each split: the pure function that the processes of `prepare` run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertjax.text.corpus import Unit, draws
from bertjax.text.documents import Document, ReadCounts
from bertjax.text.sources import read_documents
from bertjax.text.store import SPLITS
from bertjax.text.store_writer import ShardWriter, write_durably
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.segmentation import encode_words, load_segmenter
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import WordPiece

_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class ShardJob:
    """What is the same for every unit of a store."""

    folder: Path
    inputs: str  # fingerprint of everything the store is made from
    vocab: Path
    rules: TextRules
    segmenter: Literal["none", "jieba"]
    held_out: float

    @property
    def planes(self) -> tuple[str, ...]:
        """The arrays per token that the shards have besides ids."""
        return () if self.segmenter == "none" else ("continues",)


def make_shards(unit: Unit, job: ShardJob) -> dict[str, Any]:
    """Read, split, encode and write a unit; return its record.

    The record has `shards` (split -> the shard's record, or None where no document fell into the split), `reading`
    (the reader's counts), `text_bytes` and `unknown_tokens`. It is written last, beside the shards, so that a unit
    with a record is a finished one.
    """
    tokenizer = _tokenizer(job.vocab, job.rules)
    reading = ReadCounts()
    text_bytes = unknown = 0
    with ExitStack() as unfinished:
        writers = {
            split: ShardWriter(job.folder, f"{split}-{unit.number:05}", tokenizer.vocab_size, job.planes)
            for split in SPLITS
        }
        for writer in writers.values():
            unfinished.callback(writer.discard)
        for batch in _batches(unit, reading):
            ids = _write_batch(batch, writers, tokenizer, job)
            text_bytes += sum(len(document.text.encode()) for document in batch)
            unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
        shards = {split: writer.finish() if writer.documents else None for split, writer in writers.items()}
        unfinished.pop_all()
    for split, writer in writers.items():
        if shards[split] is None:
            writer.discard()
    record = {"inputs": job.inputs, "shards": shards, "reading": dataclasses.asdict(reading)}
    record |= {"text_bytes": text_bytes, "unknown_tokens": unknown}
    write_durably(_record_path(unit, job), json.dumps(record).encode())
    return record


def finished_shards(unit: Unit, job: ShardJob) -> dict[str, Any] | None:
    """The record of a unit that an earlier run finished for the same inputs; None if it has to be made."""
    try:
        record = json.loads(_record_path(unit, job).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    files = [file for shard in record["shards"].values() if shard for file in shard["files"].values()]
    there = [(job.folder / file["name"]).is_file() for file in files]
    whole = all(there) and all((job.folder / file["name"]).stat().st_size == file["bytes"] for file in files)
    return record if whole and record["inputs"] == job.inputs else None


def remove_records(units: list[Unit], job: ShardJob) -> None:
    """Remove the units' records, which a finished store has no use for."""
    for unit in units:
        _record_path(unit, job).unlink()


def _record_path(unit: Unit, job: ShardJob) -> Path:
    return job.folder / f"unit-{unit.number:05}.json"


@lru_cache(maxsize=1)
def _tokenizer(vocab: Path, rules: TextRules) -> Tokenizer:
    """Loaded once in a process: it remembers the words it has seen."""
    return load_tokenizer(vocab, rules)


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
    documents: list[Document], writers: dict[str, ShardWriter], tokenizer: Tokenizer, job: ShardJob
) -> np.ndarray:
    """Encode documents and append each to the writer of its split; return all ids."""
    sentences = [document.sentences() for document in documents]
    ids, lengths, planes = _encoded([sentence for group in sentences for sentence in group], tokenizer, job)
    document_of = np.repeat(np.arange(len(documents)), [len(group) for group in sentences])
    evaluated = np.array([draws(document.text)[0] < job.held_out for document in documents])
    for split, chosen in (("train", ~evaluated), ("held_out", evaluated)):
        # Neither a sentence without tokens nor a document without sentences goes into a store.
        kept = chosen[document_of] & (lengths > 0)
        per_document = np.bincount(document_of[kept], minlength=len(documents))
        tokens = np.repeat(kept, lengths)
        chosen_planes = {name: plane[tokens] for name, plane in planes.items()}
        writers[split].add(ids[tokens], lengths[kept], per_document[per_document > 0], **chosen_planes)
    return ids


def _encoded(
    sentences: list[str], tokenizer: Tokenizer, job: ShardJob
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Ids, lengths, and the planes of the job."""
    if job.segmenter == "none":
        return *tokenizer.encode(sentences), {}
    assert isinstance(tokenizer, WordPiece)
    ids, lengths, continues = encode_words(tokenizer, sentences, load_segmenter(job.segmenter))
    return ids, lengths, {"continues": continues}
