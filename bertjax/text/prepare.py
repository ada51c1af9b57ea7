"""Making a vocabulary and a token store from sources: what is there and fits is used again, the rest is made.

Both are kept under `data.root` by a fingerprint of everything they are made from, and are the same bytes for any
number of processes. Making a store that was interrupted goes on with the units of text that were finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertjax.config import DataConfig
from bertjax.text.corpus import Corpus, Unit, draws, fingerprint
from bertjax.text.documents import ReadCounts
from bertjax.text.marks import warn_of_lost_marks
from bertjax.text.pool import run_units
from bertjax.text.progress import Progress, no_progress
from bertjax.text.shards import ShardJob, finished_shards, make_shards, remove_records
from bertjax.text.sources import read_documents, require_documents
from bertjax.text.store import FORMAT_VERSION, SPLITS, TokenStore
from bertjax.text.store_writer import finish_store, write_durably
from bertjax.text.tokenizer import WordPiece
from bertjax.text.vocabulary import TRAINER_VERSION, count_words, smoothed, train_wordpiece

PREPARE_VERSION = 2  # of reading, sentence splitting and the cut into units; a change makes other stores
VOCABULARY_TEXT_BYTES = 1 << 30  # a vocabulary of more text is trained on a share of its documents
LEAST_DOCUMENTS = 2  # in each split: a pair of segments may need another document
NOTICEABLE_UNKNOWN = 0.01  # share of [UNK] among the tokens

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STORE_BYTES_PER_TEXT_BYTE = 0.6  # for an estimate only: two for four letters or so, eight for a sentence


def prepare_vocabulary(data: DataConfig, progress: Progress = no_progress) -> Path:
    """Return the `vocab.txt` of a run: `data.vocab`, or one trained on the training documents of the sources.

    A trained one is kept as `<root>/vocab-<fingerprint>/vocab.txt`, with how it was made beside it. Raises ValueError
    for text or a vocabulary that does not fit, OSError if the disk is full.
    """
    return _vocabulary(data, None if data.vocab else Corpus.of(data), progress)


def prepare(data: DataConfig, progress: Progress = no_progress) -> Path:
    """Return the token store of the sources, `<root>/store-<fingerprint>`, made if it is not there.

    Raises ValueError for text that cannot be read or is too little, OSError if the disk is full (nothing is left then).
    """
    corpus = Corpus.of(data)
    vocab = _vocabulary(data, corpus, progress)
    tokenizer = WordPiece.load(vocab, data.lowercase, data.strip_accents)
    made_of = {"sources": corpus.description(), "tokenizer": tokenizer.fingerprint, "held_out": data.held_out}
    inputs = fingerprint(made_of | {"versions": [FORMAT_VERSION, PREPARE_VERSION]})
    target = Path(data.root) / f"store-{inputs[:12]}"
    with _alone_in(Path(data.root)):
        if target.exists():
            _require_inputs(TokenStore.open(target).manifest["provenance"].get("inputs"), inputs, target)
            return target
        if data.strip_accents:
            warn_of_lost_marks([file for group in corpus.files for file in group])
        folder = target.with_name(f"{target.name}.partial")
        job = ShardJob(folder, inputs, vocab, data.lowercase, data.strip_accents, data.held_out)
        _make_store(target, corpus, tokenizer, job, data.workers, progress)
    return target


def summary(store: TokenStore) -> str:
    """What is in a store, in a line to print."""
    splits = [
        f"{name.replace('_', ' ')}: {view.num_documents:,} documents, {view.num_sentences:,} sentences, "
        f"{view.num_tokens:,} tokens"
        for name, view in ((name, store.split(name)) for name in SPLITS)
    ]
    about = store.manifest["provenance"]
    tokens = sum(store.split(name).num_tokens for name in SPLITS)
    return (
        f"{'; '.join(splits)}; from {about['text_bytes'] / 1e6:.1f} MB of text, "
        f"{about['unknown_tokens'] / tokens:.3%} of the tokens are [UNK]"
    )


def _vocabulary(data: DataConfig, corpus: Corpus | None, progress: Progress) -> Path:
    if data.vocab:
        WordPiece.load(data.vocab, data.lowercase, data.strip_accents)
        return Path(data.vocab)
    assert corpus is not None
    made_of = {
        "sources": corpus.description(),
        "held_out": data.held_out,
        "lowercase": data.lowercase,
        "strip_accents": data.strip_accents,
        "vocab_size": data.vocab_size,
        "versions": [TRAINER_VERSION, PREPARE_VERSION],
    }
    if data.vocab_temperature != 1:
        made_of["vocab_temperature"] = data.vocab_temperature
    inputs = fingerprint(made_of)
    folder = Path(data.root) / f"vocab-{inputs[:12]}"
    with _alone_in(Path(data.root)):
        if folder.exists():
            _require_vocabulary(folder, inputs)
        else:
            _train_vocabulary(folder, inputs, corpus, data, progress)
    return folder / "vocab.txt"


def _train_vocabulary(folder: Path, inputs: str, corpus: Corpus, data: DataConfig, progress: Progress) -> None:
    if data.strip_accents:
        warn_of_lost_marks([file for group in corpus.files for file in group])
    share = min(1.0, VOCABULARY_TEXT_BYTES / max(corpus.text_bytes, 1))
    count = partial(_count_unit, data=data, share=share)
    of_source: list[Counter[str]] = [Counter() for _ in corpus.sources]
    total, done = sum(unit.size for unit in corpus.units), 0
    for unit, counted in run_units(count, corpus.units, data.workers, "counting words"):
        of_source[unit.source].update(counted)
        done += unit.size
        progress("counting words", done, total)
    corpus.require_unchanged()
    words = smoothed(of_source, data.vocab_temperature)
    tokens = train_wordpiece(words, data.vocab_size, partial(progress, "training the vocabulary"))
    tokenizer = WordPiece(tokens, data.lowercase, data.strip_accents)
    how = {
        "inputs": inputs,
        "sha256": hashlib.sha256(tokenizer.vocab_bytes).hexdigest(),
        "vocab_size": tokenizer.vocab_size,
        "asked_vocab_size": data.vocab_size,
        "lowercase": data.lowercase,
        "strip_accents": data.strip_accents,
        "words": words.total(),
        "distinct_words": len(words),
        "share_of_documents": share,
        "sources": [str(source) for source in corpus.sources],
    }
    unfinished = folder.with_name(f"{folder.name}.partial")
    with _nothing_left_of(unfinished, lambda: len(tokenizer.vocab_bytes)):
        unfinished.mkdir(exist_ok=True)
        write_durably(unfinished / "vocab.txt", tokenizer.vocab_bytes)
        write_durably(unfinished / "made.json", json.dumps(how, indent=1).encode())
        unfinished.rename(folder)


def _count_unit(unit: Unit, data: DataConfig, share: float) -> Counter[str]:
    """The words of a unit's training documents, or of a share of them."""

    def texts() -> Iterator[str]:
        for file in unit.files:
            for document in read_documents(file):
                held, sampled = draws(document.text)
                if held >= data.held_out and sampled < share:
                    yield document.text

    return count_words(texts(), data.lowercase, data.strip_accents)


def _make_store(
    target: Path, corpus: Corpus, tokenizer: WordPiece, job: ShardJob, workers: int, progress: Progress
) -> None:
    records: dict[int, dict[str, Any]] = {}
    with _nothing_left_of(job.folder, lambda: _bytes_needed(corpus, records)):
        job.folder.mkdir(exist_ok=True)
        _fill(records, corpus, job, workers, progress)
        corpus.require_unchanged()
        shards = {
            split: [s for unit in corpus.units if (s := records[unit.number]["shards"][split])] for split in SPLITS
        }
        provenance = _provenance(corpus, records, job)
        _require_enough(shards, job.held_out)
        _warn_of_unknown(shards, provenance["unknown_tokens"], job.vocab)
        remove_records(corpus.units, job)
        finish_store(job.folder, target, shards, tokenizer, provenance)


def _fill(records: dict[int, dict[str, Any]], corpus: Corpus, job: ShardJob, workers: int, progress: Progress) -> None:
    """Put the record of every unit into `records`, making those that an interrupted run has not."""
    for unit in corpus.units:
        if record := finished_shards(unit, job):
            records[unit.number] = record
    total = sum(unit.size for unit in corpus.units)
    done = sum(unit.size for unit in corpus.units if unit.number in records)
    progress("preparing text", done, total)
    missing = [unit for unit in corpus.units if unit.number not in records]
    for unit, record in run_units(partial(make_shards, job=job), missing, workers, "preparing text"):
        records[unit.number] = record
        done += unit.size
        progress("preparing text", done, total)


def _provenance(corpus: Corpus, records: dict[int, dict[str, Any]], job: ShardJob) -> dict[str, Any]:
    """Where a store's text came from. Raises ValueError if a source had none."""
    reading = [ReadCounts() for _ in corpus.sources]
    for unit in corpus.units:
        reading[unit.source].add(ReadCounts(**records[unit.number]["reading"]))
    for source, counts in zip(corpus.sources, reading, strict=True):
        require_documents(source, counts)
    return {
        "inputs": job.inputs,
        "held_out": job.held_out,
        "sources": corpus.description(),
        "reading": [dataclasses.asdict(counts) for counts in reading],
        "shard_sources": {
            split: [unit.source for unit in corpus.units if records[unit.number]["shards"][split]] for split in SPLITS
        },
        "text_bytes": sum(record["text_bytes"] for record in records.values()),
        "unknown_tokens": sum(record["unknown_tokens"] for record in records.values()),
    }


def _require_enough(shards: Mapping[str, Sequence[Mapping[str, Any]]], held_out: float) -> None:
    train, evaluation = (sum(shard["documents"] for shard in shards[split]) for split in ("train", "held_out"))
    if min(train, evaluation) < LEAST_DOCUMENTS:
        raise ValueError(
            f"data.held_out={held_out} leaves {evaluation} of {train + evaluation} documents for evaluation and "
            f"{train} for training; each needs {LEAST_DOCUMENTS}: give another share, or more documents"
        )


def _warn_of_unknown(shards: Mapping[str, Sequence[Mapping[str, Any]]], unknown: int, vocab: Path) -> None:
    share = unknown / sum(shard["tokens"] for group in shards.values() for shard in group)
    if share > NOTICEABLE_UNKNOWN:
        warnings.warn(
            f"{share:.1%} of the tokens are [UNK]: the vocabulary {vocab} does not fit this text; use one of its "
            "language, or leave data.vocab empty to train one",
            stacklevel=2,
        )


def _require_inputs(found: Any, inputs: str, where: Path) -> None:
    """What is kept under the first digits of a fingerprint is used only if the whole fingerprint is the same."""
    if found != inputs:
        raise ValueError(f"{where} was made from other inputs ({found}, needed {inputs}); delete it")


def _require_vocabulary(folder: Path, inputs: str) -> None:
    try:
        how = json.loads((folder / "made.json").read_bytes())
        found = hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest()
    except (FileNotFoundError, ValueError):
        raise ValueError(
            f"vocabulary {folder}: made.json or vocab.txt is missing or damaged; delete the folder"
        ) from None
    _require_inputs(how["inputs"], inputs, folder)
    if found != how["sha256"]:
        raise ValueError(
            f"vocabulary {folder / 'vocab.txt'} was changed after it was made; delete the folder, or name the file in "
            "data.vocab to use it as it is"
        )


def _bytes_needed(corpus: Corpus, records: Mapping[int, Mapping[str, Any]]) -> int:
    """About how large the store gets, by what is there already."""
    shards = [shard for record in records.values() for shard in record["shards"].values() if shard]
    written = sum(file["bytes"] for shard in shards for file in shard["files"].values())
    read = sum(unit.size for unit in corpus.units if unit.number in records)
    if not read:
        return round(_STORE_BYTES_PER_TEXT_BYTE * corpus.text_bytes)
    return round(written / read * sum(unit.size for unit in corpus.units))


@contextlib.contextmanager
def _nothing_left_of(folder: Path, bytes_needed: Callable[[], int]) -> Iterator[None]:
    """Remove a folder if the text turns out to be wrong or the disk full, and name it in the message of the latter."""
    try:
        yield
    except ValueError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        shutil.rmtree(folder, ignore_errors=True)
        free = shutil.disk_usage(folder.parent).free
        raise OSError(
            error.errno,
            f"cannot write {folder} ({error.strerror}): about {bytes_needed() / 1e6:.1f} MB are needed there, "
            f"{free / 1e6:.1f} MB are free; make room, or set data.root to a larger disk",
        ) from error


@contextlib.contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Wait until no other process makes something below `root`; the lock ends with the process, however it ends."""
    root.mkdir(parents=True, exist_ok=True)
    with open(root / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
