"""Turn a unit of text into one shard of each split: the pure function that `prepare`'s processes run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bertjax.config import DataConfig
from bertjax.storage.atomic_directories import publish, remove_tree, scratch_dir
from bertjax.storage.remote import AnyPath, is_remote
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.corpus import Unit, with_draws
from bertjax.text.division import Division
from bertjax.text.documents import Document
from bertjax.text.groups import name_hash, read_groups
from bertjax.text.screening import DrawnDocument, Screen, compares, publish_files, read_record, read_verdicts
from bertjax.text.sources.registry import read_documents
from bertjax.text.spans import PLANE_OF_KIND
from bertjax.text.store.manifest import SPLITS, ShardRecord, json_sha256, shard_files
from bertjax.text.store.writer import ShardWriter
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.text.units import UnitMarker, find_units
from bertjax.text.unknown_letters import UnknownLetters
from bertjax.tokenization.segmentation import encode_words, load_segmenter
from bertjax.tokenization.tokenizer import TextRules, Tokenizer

_BATCH_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class ShardJob:
    """The parameters that all units of a store share."""

    folder: AnyPath  # of the shards; for a remote store, the store itself
    inputs: str  # fingerprint of all inputs of the store
    settings: str  # fingerprint of all inputs but the text
    vocab: AnyPath
    data: DataConfig
    division: Division
    list_digest: str = ""  # of the list that `data.units` names, if any

    @property
    def planes(self) -> tuple[str, ...]:
        """The per-token arrays of the shards in addition to ids."""
        if self.data.units:
            return tuple(PLANE_OF_KIND.values())
        return () if self.data.segmenter == "none" else ("continues",)

    @property
    def records(self) -> AnyPath:
        """The directory of the units' records."""
        return self.folder / "partial" if is_remote(self.folder) else self.folder


def make_shards(unit: Unit, job: ShardJob) -> dict[str, Any]:
    """Read, split, encode and write a unit; return its record.

    The record has `digest` (`unit_digest`), `shards` (split -> the shard's record, None if no document fell into the
    split), `reading` (the reader's counts), `divided` (name and documents of each divided file), `text_bytes`,
    `unknown_tokens` and, if the job has any, `units` (their counts by plane) and `screened` (the counts of filters).
    It is published after the shards, so a unit with a record is finished. Two processes may make the same unit at the
    same time, as happens on clusters. Raises ValueError like reading, and if the list of units has changed.
    """
    data, groups = job.data, job.data.groups
    tokenizer = _tokenizer(job.vocab, TextRules.of(data))
    reading = ReadCounts()
    divided: list[tuple[str, int]] = []
    marker = UnitMarker(find_units(data.units, tokenizer.rules.lowercase, job.list_digest)) if data.units else None
    letters = UnknownLetters()
    screen = Screen(data.filters, read_verdicts(unit, job.records) if compares(data.filters) else None)
    text_bytes = unknown = ungrouped = 0
    with ExitStack() as unfinished:
        scratch = Path(unfinished.enter_context(scratch_dir(job.folder, f"{unit.name}-")))
        writers = {
            split: ShardWriter(
                scratch, f"{split}-{unit.number:05}", tokenizer.vocab_size, job.planes, has_groups=bool(groups)
            )
            for split in SPLITS
        }
        for writer in writers.values():
            unfinished.callback(writer.discard)
        for batch in _batches(unit, job, screen, reading, divided):
            ids = _write_batch(batch, writers, tokenizer, job, marker, letters)
            text_bytes += sum(len(document.text.encode()) for document, _ in batch)
            unknown += int(np.count_nonzero(ids == tokenizer.unk_id))
            if groups:
                firsts = [document for document, _ in batch if not document.is_continuation]
                ungrouped += sum(read_groups(groups).of(document) is None for document in firsts)
        finished = {split: writer.finish() for split, writer in writers.items()}
        shards = {split: shard if shard["documents"] else None for split, shard in finished.items()}
        record = {"inputs": job.inputs, "digest": unit_digest(unit, job), "shards": shards}
        record |= {"reading": reading.to_json(), "divided": divided}
        record |= {"text_bytes": text_bytes, "unknown_tokens": unknown, **({"units": marker.counts} if marker else {})}
        record |= letters.to_json() | ({"ungrouped": ungrouped} if groups else {})
        record |= {"screened": screen.to_json()} if data.filters else {}
        for name in _shard_files(record):
            publish(scratch / name, job.folder)
        publish_files({f"{unit.name}.json": json.dumps(record).encode()}, scratch, job.records)
    return record


def unit_digest(unit: Unit, job: ShardJob) -> str:
    """SHA-256 (hex) of everything that determines a unit's shards, except their names."""
    return json_sha256([job.settings, unit.digest])


class UnitRecord(TypedDict):
    """The required keys of a unit's record."""

    inputs: str
    digest: str
    shards: dict[str, ShardRecord | None]


def finished_record(unit: Unit, job: ShardJob) -> dict[str, Any] | None:
    """The record of a unit that any process has finished for the same inputs; None if there is none.

    A record is written after its shards, but a local disk may still lose them in a power failure, so their sizes are
    checked.
    """
    record, folder = read_record(job.records / f"{unit.name}.json", UnitRecord, job.inputs), job.folder
    if record is None or not isinstance(folder, Path):
        return record
    files = ((folder / name, size) for name, size in _shard_files(record).items())
    return record if all(path.is_file() and path.stat().st_size == size for path, size in files) else None


def remove_records(job: ShardJob) -> None:
    """Remove the units' records, and the files of killed processes."""
    if job.records != job.folder:
        remove_tree(job.records)
        return
    for path in job.folder.glob("unit-*"):
        if path.is_dir():
            remove_tree(path)
        else:
            path.unlink()


def _shard_files(record: Mapping[str, Any]) -> dict[str, int]:
    """Name -> bytes of the files of a unit's shards."""
    shards = [shard for shard in record["shards"].values() if shard]
    return {file["name"]: file["bytes"] for shard in shards for file in shard_files(shard)}


@lru_cache(maxsize=1)
def _tokenizer(vocab: AnyPath, rules: TextRules) -> Tokenizer:
    """Load the tokenizer once per process, since it caches words."""
    return load_vocabulary(vocab, rules)


def _batches(
    unit: Unit, job: ShardJob, screen: Screen, reading: ReadCounts, divided: list[tuple[str, int]]
) -> Iterator[list[DrawnDocument]]:
    """Yield the document parts of a unit with their draws, about `_BATCH_CHARACTERS` at a time.

    Appends (name, number of resulting documents) to `divided` for each file whose documents were split.
    """
    batch: list[DrawnDocument] = []
    size = 0
    groups = read_groups(job.data.groups) if job.data.groups else None
    for file in unit.files:
        before = reading.pieces
        drawn_documents = with_draws(read_documents(file, reading, job.division.longest), groups)
        for document, drawn in screen.passing(drawn_documents) if job.data.filters else drawn_documents:
            batch.append((document, drawn))
            size += len(document.text)
            if size >= _BATCH_CHARACTERS:
                yield batch
                batch, size = [], 0
        if reading.pieces > before:
            divided.append((file.path.rpartition("/")[2], reading.pieces - before))
    if batch:
        yield batch


def _write_batch(
    batch: list[DrawnDocument],
    writers: dict[str, ShardWriter],
    tokenizer: Tokenizer,
    job: ShardJob,
    marker: UnitMarker | None,
    letters: UnknownLetters,
) -> np.ndarray:
    """Encode documents and append each to the writer of its split; return all ids."""
    sentences = [document.sentences() for document, _ in batch]
    ids, lengths, planes = _encode([document for document, _ in batch], sentences, tokenizer, job, marker)
    if tokenizer.is_symbolic:
        letters.add([document for document, _ in batch], sentences, ids, lengths, tokenizer)
    part_index = np.repeat(np.arange(len(batch)), [len(group) for group in sentences])
    is_continuation = np.array([document.is_continuation for document, _ in batch])
    held_out = np.array([draw < job.division.held_out for _, (draw, _) in batch])
    groups = _groups(batch, job) if job.data.groups else None
    same_work = np.array([document.is_of_same_work for document, _ in batch]) if job.division.longest else None
    for split, in_split in (("train", ~held_out), ("held_out", held_out)):
        is_stored = in_split[part_index] & (lengths > 0)  # sentences without tokens are left out
        per_part = np.bincount(part_index[is_stored], minlength=len(batch))
        tokens = np.repeat(is_stored, lengths)
        split_planes = {name: plane[tokens] for name, plane in planes.items()}
        writers[split].add(
            ids[tokens], lengths[is_stored], per_part, is_continuation, same_work, groups, **split_planes
        )
    return ids


def _groups(batch: Sequence[DrawnDocument], job: ShardJob) -> np.ndarray:
    """The group of each document part, uint64; a document without a group forms its own."""
    groups = read_groups(job.data.groups)

    def group(document: Document) -> int:
        number = groups.of(document)
        return name_hash(document.text) if number is None else number

    return np.array([group(document) for document, _ in batch], np.uint64)


def _encode(
    documents: Sequence[Document],
    groups: Sequence[Sequence[str]],
    tokenizer: Tokenizer,
    job: ShardJob,
    marker: UnitMarker | None,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Encode the sentences of documents: ids, lengths in tokens, and the planes of the job."""
    sentences = [sentence for group in groups for sentence in group]
    bare = [False] * len(sentences)
    if not tokenizer.rules.prefix_space:
        bare = [one for document, group in zip(documents, groups, strict=True) for one in document.bare(group)]
    if job.data.segmenter == "none":
        ids, lengths = tokenizer.encode_running(sentences, bare)
        continues = None
    else:
        ids, lengths, continues = encode_words(tokenizer, sentences, load_segmenter(job.data.segmenter))
    if marker is not None:
        words = tokenizer.is_continuation[ids] if continues is None else continues
        return ids, lengths, marker.planes(tokenizer, sentences, bare, lengths, words)
    return ids, lengths, {} if continues is None else {"continues": continues}
