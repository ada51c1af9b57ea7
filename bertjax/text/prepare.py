"""Prepare a token store from sources, unless one with the same inputs exists.

A store is named after a fingerprint of all its inputs, under `data.root`, and has the same bytes for any number of
processes and machines. After an interruption the finished units of text are reused.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertjax.config import DataConfig
from bertjax.storage.atomic_directories import (
    exclusive_lock,
    explaining_full_disk,
    is_complete,
    removed_if_invalid,
    require_inputs,
    shared_lock,
)
from bertjax.storage.progress import SIGNS, Progress, no_progress
from bertjax.storage.remote import AnyPath, is_remote, to_path
from bertjax.storage.terminal import first_names
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.claims import Claims
from bertjax.text.corpus import Corpus, Unit, refuse_changed
from bertjax.text.division import LEAST_DOCUMENTS, divide
from bertjax.text.documents import DIVIDING_VERSION, describe_counts
from bertjax.text.earlier_units import take_over_units
from bertjax.text.filters.registry import FILTERS, filters_fingerprint, require_filters
from bertjax.text.groups import read_groups
from bertjax.text.marks import warn_of_stripped_accents
from bertjax.text.pool import Runner, processes
from bertjax.text.readable import readable_corpus, reporting_unreadable
from bertjax.text.screening import (
    compare_unit,
    compares,
    has_verdicts,
    read_comparison,
    screening_counts,
    screening_table,
    write_verdicts,
)
from bertjax.text.shards import ShardJob, finished_record, make_shards, remove_records
from bertjax.text.sources.registry import KINDS, parse_sources, require_documents, source_files
from bertjax.text.store.format import TokenStore
from bertjax.text.store.joined import require_joinable
from bertjax.text.store.manifest import ARRAYS_VERSION, MANIFEST_FILE, SPLITS, json_sha256, read_manifest, shard_files
from bertjax.text.store.writer import finish_store, publish_store
from bertjax.text.store_sources import relative_names
from bertjax.text.trained_vocabulary import (
    READING_VERSION,
    added_words,
    load_vocabulary,
    resolve_vocabulary,
    vocabulary_with_entities,
)
from bertjax.text.units import require_spans, units_fingerprint
from bertjax.text.unknown_letters import merge_unknown_letters, require_known_letters
from bertjax.tokenization.segmentation import load_segmenter
from bertjax.tokenization.tokenizer import RUNNING_TEXT_VERSION, TextRules, Tokenizer
from bertjax.tokenization.training import parse_kind

_WAIT_SECONDS = 2.0  # between two checks of the units that other machines are working on
_LISTED_FILES = 8
_LISTED_SKIPPED = 40
NOTICEABLE_UNKNOWN = 0.01  # share of [UNK] among the tokens

_STORE_BYTES_PER_TEXT_BYTE = 0.6  # an estimate: two bytes for about four letters, eight for a sentence


def require_sources(data: DataConfig) -> None:
    """Raise ValueError, before reading text, for a missing store, or missing sources, vocabularies or libraries."""
    if data.store:
        require_joinable([read_manifest(to_path(store)) for store in data.store], data.store)
        return
    for source in parse_sources(data.sources):
        if KINDS[source.kind].find is None:
            source_files(source, data.exclude, check=data.on_error == "stop")
    if data.vocab and data.entity_map:
        vocabulary_with_entities(data, data.vocab)
    elif data.vocab:
        load_vocabulary(data.vocab, TextRules.of(data))
    else:
        parse_kind(data.tokenizer)
    if data.segmenter != "none":
        load_segmenter(data.segmenter)
    if data.units:
        units_fingerprint(data)
    if data.groups:
        read_groups(data.groups)
    if data.filters:
        require_filters(data)


def prepare(data: DataConfig, progress: Progress = no_progress, runner: Runner | None = None) -> AnyPath:
    """Return the token store of the sources, `<root>/store-<fingerprint>`; makes it if it does not exist.

    The runner does the work; by default `data.workers` processes. Other machines that prepare the same store in a
    shared `data.root` at the same time do a part of it. Raises ValueError for text that cannot be read or is too
    short, and OSError if the disk is full; the same call continues from the units that are finished.
    """
    runner = runner or processes(data.workers)
    with SIGNS.doing("finding and hashing the text"):
        corpus = readable_corpus(data, progress, runner)
    with reporting_unreadable(corpus, progress, runner):
        tokenizer, job, target = _plan_store(data, corpus, progress, runner)
        root = to_path(data.root)
        records: dict[int, dict[str, Any]] = {}

        # 1. Process the units that are not finished
        with shared_lock(root, target.name):
            if not is_complete(target, MANIFEST_FILE) and not _is_publishable(job):
                with (
                    SIGNS.doing("preparing text"),
                    explaining_full_disk(job.folder, lambda: _bytes_needed(corpus, records)),
                ):
                    job.folder.mkdir(exist_ok=True)
                    take_over_units(corpus.units, job)
                    _compare_documents(corpus.units, corpus.units, job, runner, progress)
                    _fill(records, corpus.units, _shard_step(job), runner, progress)

        with exclusive_lock(root, target.name):
            # 2. Reuse a store with the same inputs, or one that an interrupted process finished but did not publish
            if not is_complete(target, MANIFEST_FILE) and _is_publishable(job):
                _publish(job, target)
            if is_complete(target, MANIFEST_FILE):
                # Opening a local store also checks that its files exist.
                manifest = TokenStore.open(target).manifest if isinstance(target, Path) else read_manifest(target)
                require_inputs(manifest["provenance"].get("inputs"), job.inputs, target)
                _require_few_bad_records(_counts(manifest["provenance"].get("reading", [])), data)
                require_known_letters(merge_unknown_letters([manifest["provenance"]]), data)
                return target
            _require_few_bad_records(_counts(record["reading"] for record in records.values()), data)
            require_known_letters(merge_unknown_letters(records.values()), data)
            recomposes = not tokenizer.is_symbolic and parse_kind(tokenizer.kind)[0].recomposes
            note = warn_of_stripped_accents(corpus.files, recomposes) if tokenizer.rules.strip_accents else ""

            # Remove units that cannot become a store; keep those that a full disk or a kill interrupts.
            with SIGNS.doing("preparing text"):
                _require_unchanged(corpus, job)
            with (
                SIGNS.doing("preparing text"),
                explaining_full_disk(job.folder, lambda: _bytes_needed(corpus, records)),
                removed_if_invalid(job.folder),
            ):
                # 3. Check that both splits have enough documents, and that the text has units of data.units
                shards = {
                    split: [shard for unit in corpus.units if (shard := records[unit.number]["shards"][split])]
                    for split in SPLITS
                }
                provenance = _checked_provenance(corpus, records, shards, job, note)

                # 4. Publish
                finish_store(job.folder, shards, tokenizer, provenance, job.planes)
                _publish(job, target)
            _warn_of_unknown(read_manifest(target), tokenizer, data)
    return target


def prepare_share(data: DataConfig, index: int, count: int, progress: Progress = no_progress) -> tuple[int, int]:
    """Do `prepare`'s work on one of `count` machines that share `data.root`, except for publishing the store.

    Machine `index` begins with its share of the units, then helps with the remaining ones. `prepare` publishes what
    they wrote and processes what is missing. Returns (finished units, all units). Raises ValueError for a share that
    does not exist, and where `prepare` does.
    """
    if not 0 <= index < count:
        raise ValueError(f"--shard {index}/{count}: shards of {count} are numbered from 0 to {count - 1}")
    runner = processes(data.workers)
    corpus = readable_corpus(data, progress, runner)
    with reporting_unreadable(corpus, progress, runner):
        _, job, target = _plan_store(data, corpus, progress, runner)
        with shared_lock(to_path(data.root), target.name):
            if is_complete(target, MANIFEST_FILE) or _is_publishable(job):
                return len(corpus.units), len(corpus.units)
            job.folder.mkdir(exist_ok=True)
            take_over_units(corpus.units, job)
            begin = len(corpus.units) * index // count
            units = corpus.units[begin:] + corpus.units[:begin]
            _compare_documents(corpus.units, units, job, runner, progress)
            _fill({}, units, _shard_step(job), runner, progress, waits=False)
            _require_unchanged(corpus, job)
            return sum(finished_record(unit, job) is not None for unit in corpus.units), len(corpus.units)


def _plan_store(
    data: DataConfig, corpus: Corpus, progress: Progress, runner: Runner
) -> tuple[Tokenizer, ShardJob, AnyPath]:
    """Determine the tokenizer, the job that all units share, and the path of the store."""
    units = {"units": units_fingerprint(data)} if data.units else {}
    with SIGNS.doing("splitting the text for parallel processing"):
        require_spans(data, corpus.files)
        division = divide(corpus, data)
    if data.segmenter != "none":
        load_segmenter(data.segmenter)  # fail before the vocabulary is trained, which takes long
    with SIGNS.doing("training the vocabulary"):
        vocab = resolve_vocabulary(data, corpus, division, progress, runner)
    tokenizer = load_vocabulary(vocab, TextRules.of(data))
    inputs_json = {
        "tokenizer": tokenizer.fingerprint,
        **division.inputs(),
        **units,
        **({"filters": filters_fingerprint(data.filters)} if data.filters else {}),
    }
    kinds = {file.kind for files in corpus.files for file in files}
    digests = {*map(KINDS.plugin_digest, kinds), *map(FILTERS.plugin_digest, data.filters)} - {""}
    if digests:  # an edited plug-in may read or leave out other text
        inputs_json["plugins"] = sorted(digests)
    if division.longest:
        inputs_json["dividing"] = DIVIDING_VERSION
    if not tokenizer.rules.prefix_space:
        inputs_json["running_text"] = RUNNING_TEXT_VERSION
    if data.segmenter != "none":
        if not tokenizer.splits_like_bert:
            raise ValueError(
                f"data.segmenter={data.segmenter!r} requires a WordPiece vocabulary that splits words as BERT does, "
                f"but this is {tokenizer.kind_name}; set it to none"
            )
        inputs_json["segmenter"] = f"{data.segmenter} {importlib.metadata.version(data.segmenter)}"
    inputs_json["versions"] = [ARRAYS_VERSION, READING_VERSION]
    inputs = json_sha256(inputs_json | {"sources": corpus.description(), **corpus.cutting()})
    target = to_path(data.root) / f"store-{inputs[:12]}"
    folder = target if is_remote(target) else target.with_name(f"{target.name}.partial")
    list_digest = units["units"].get("list", "") if units else ""
    job = ShardJob(folder, inputs, json_sha256(inputs_json), vocab, data, division, list_digest)
    return tokenizer, job, target


def _require_unchanged(corpus: Corpus, job: ShardJob) -> None:
    """Raise ValueError if a file has changed since it was hashed. The units of other files stay finished."""
    changed = list(corpus.changed_files())
    readings = {file.reading for file in changed}
    for unit in corpus.units if changed else ():
        if any(file.reading in readings for file in unit.files):
            (job.records / f"{unit.name}.json").unlink(missing_ok=True)
    refuse_changed(changed)


def _is_publishable(job: ShardJob) -> bool:
    """Whether a local store is finished and only needs `_publish`."""
    if not isinstance(job.folder, Path) or not (job.folder / MANIFEST_FILE).is_file():
        return False
    try:
        return TokenStore.open(job.folder).manifest["provenance"].get("inputs") == job.inputs
    except ValueError:
        return False


def _publish(job: ShardJob, target: AnyPath) -> None:
    """Turn a finished folder into the store. Call it last: the units' records, which allow a restart, are removed."""
    remove_records(job)
    publish_store(job.folder, target)


def _note_on_groups(data: DataConfig, ungrouped: int, documents: int) -> str:
    """A note if some records have no group, or if sequences are held out at random; else an empty string.

    Raises ValueError if no record has a group.
    """
    if ungrouped >= documents:
        raise ValueError(
            f"data.groups={data.groups!r}: none of {documents:,} records is in a group; list these records by their "
            "names: the first word of a FASTA header, the second column of SMILES"
        )
    if ungrouped:
        return f"records without a group in data.groups, each held out by itself: {ungrouped:,} of {documents:,}"
    if data.groups or not any(KINDS[source.kind].is_sequence for source in parse_sources(data.sources)):
        return ""
    return (
        "records are held out at random: training may see near relatives of a held-out record, and held-out figures "
        "are then better than on new families; give clusters, as in --data.groups mmseqs:clusters.tsv"
    )


def _counts(readings: Iterable[Mapping[str, Any]]) -> ReadCounts:
    """Sum counts of reading, each as JSON."""
    counts = ReadCounts()
    for reading in readings:
        counts.add(ReadCounts(**reading))
    return counts


def _require_few_bad_records(counts: ReadCounts, data: DataConfig) -> None:
    """Raise ValueError if more records were left out than `data.bad_records` allows."""
    if counts.bad_records > data.bad_records * counts.records:
        share = counts.bad_records / counts.records
        listed = "".join(f"\n  {reason}" for reason in counts.bad_examples)
        raise ValueError(
            f"data.bad_records={data.bad_records:g}: {counts.bad_records:,} of {counts.records:,} records cannot be "
            f"read, a share of {share:.2g}; allow that share, or correct the text; the first ones:{listed}"
        )


def reading_notes(manifest: Mapping[str, Any]) -> list[str]:
    """Lines to print on what reading a store's text split, held out, cut, replaced or left out."""
    provenance = manifest["provenance"]
    counts = _counts(provenance.get("reading", []))
    divided = provenance.get("divided", [])
    notes = describe_counts(dataclasses.replace(counts, pieces=0))  # the pieces are listed by file instead
    notes += [f"{pieces:,} documents were made from {name}" for name, pieces in divided[:_LISTED_FILES]]
    if len(divided) > _LISTED_FILES:
        notes.append(f"and so on, {len(divided):,} files in all")
    notes += [
        f"read as {encoding}, detected from the content (set data.encoding if it is wrong): "
        f"{first_names(map(os.path.basename, paths), _LISTED_FILES)}"
        for encoding, paths in provenance.get("encodings", {}).items()
    ]
    if counts.bad_records:
        reasons = [reason.partition("; ")[0] for reason in counts.bad_examples]
        notes.append("\n  ".join((f"records that cannot be read, left out: {counts.bad_records:,}", *reasons)))
    if skipped := provenance.get("skipped", []):
        notes.append(_skipped_table(skipped))
    if screened := provenance.get("screened"):
        notes.append(screening_table(screened))
    if (letters := merge_unknown_letters([provenance])).records:
        notes.append(f"{letters.describe()}; they are [UNK]")
    return [*notes, *provenance.get("division", []), *provenance.get("notes", [])]


def _skipped_table(skipped: Sequence[Sequence[str]]) -> str:
    """A table of the files that were left out: name and reason."""
    rows = [
        (os.path.basename(path), reason.removeprefix(f"{path}: ").partition("; ")[0])
        for path, reason in skipped[:_LISTED_SKIPPED]
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"files that were left out: {len(skipped):,}", *(f"  {name:{width}}  {reason}" for name, reason in rows)]
    if len(skipped) > _LISTED_SKIPPED:
        lines.append(f"  and {len(skipped) - _LISTED_SKIPPED:,} more, listed in the store's manifest.json")
    return "\n".join(lines)


def text_changes(manifest: Mapping[str, Any], data: DataConfig) -> list[str]:
    """Describe how the sources' text has changed since a store was made from it, a phrase per source."""
    earlier = manifest["provenance"].get("sources")
    return [] if earlier is None else Corpus.of(data).changes_since(earlier)


class _Step(NamedTuple):
    """A pass over all units, which writes a record for each."""

    what: str
    claims: AnyPath  # the file of the claims on units
    make: Callable[[Unit], dict[str, Any]]  # processes a unit and returns its record
    read: Callable[[Unit], dict[str, Any] | None]  # returns a unit's record, if any process has finished the unit


def _shard_step(job: ShardJob) -> _Step:
    return _Step(
        "preparing text",
        job.folder / "unit-claims",
        partial(make_shards, job=job),
        partial(finished_record, job=job),
    )


def _compare_documents(
    all_units: Sequence[Unit], units: Sequence[Unit], job: ShardJob, runner: Runner, progress: Progress
) -> None:
    """Find the documents that filters leave out because of other documents; does nothing without such filters.

    `units` are all units in the order in which this process reads them.
    """
    if not compares(job.data.filters) or has_verdicts(job.inputs, job.records):
        return
    folder = job.records
    step = _Step(
        "comparing documents",
        job.folder / "unit-comparison-claims",
        partial(compare_unit, inputs=job.inputs, names=job.data.filters, longest=job.division.longest, folder=folder),
        partial(read_comparison, inputs=job.inputs, folder=folder),
    )
    folder.mkdir(exist_ok=True)
    records: dict[int, dict[str, Any]] = {}
    _fill(records, units, step, runner, progress)
    write_verdicts(all_units, records, job.inputs, job.data.filters, folder)


def _fill(
    records: dict[int, dict[str, Any]],
    units: Sequence[Unit],
    step: _Step,
    runner: Runner,
    progress: Progress,
    *,
    waits: bool = True,
) -> None:
    """Fill `records` with the record of every unit, processing those that are neither finished nor claimed by others.

    `waits`: also wait for units that other processes have claimed, and process them if those end before finishing.
    """
    total = sum(unit.size for unit in units)
    with Claims(step.claims) as claims:
        while True:
            missing = [unit for unit in units if unit.number not in records]
            records |= {unit.number: record for unit in missing if (record := step.read(unit))}
            missing = [unit for unit in missing if unit.number not in records]
            done = total - sum(unit.size for unit in missing)
            progress(f"{step.what}, bytes", done, total)
            before = len(records)
            claimed = claims.claim_each(missing, lambda unit: step.read(unit) is not None)
            for unit, record in runner(step.make, claimed, step.what):
                records[unit.number] = record
                claims.release(unit.number)
                done += unit.size
                progress(f"{step.what}, bytes", done, total)
            is_idle = len(records) == before  # others have claimed all remaining units
            if len(records) == len(units) or (is_idle and not waits):
                return
            if is_idle:
                time.sleep(_WAIT_SECONDS)


def _checked_provenance(
    corpus: Corpus,
    records: dict[int, dict[str, Any]],
    shards: Mapping[str, Sequence[Mapping[str, Any]]],
    job: ShardJob,
    note: str,
) -> dict[str, Any]:
    """Describe where the text came from and how it was divided, with a `note` unless it is empty.

    Raises ValueError for a source without text, a split with too few documents, and text without units of `data.units`.
    """
    data, provenance = job.data, _provenance(corpus, records, job)
    train_tokens, held_out_tokens = (sum(shard["tokens"] for shard in shards[split]) for split in SPLITS)
    held_out_share = held_out_tokens / max(train_tokens + held_out_tokens, 1)
    if notes := job.division.notes(held_out_share if data.filters else None):
        provenance["division"] = notes
    train, evaluation = (sum(shard["documents"] for shard in shards[split]) for split in SPLITS)
    if min(train, evaluation) < LEAST_DOCUMENTS and "screened" in provenance:
        raise ValueError(
            f"data.filters={data.filters} leaves {train} documents for training and {evaluation} for "
            f"evaluation; each needs {LEAST_DOCUMENTS}: remove a filter, or add text\n"
            f"{screening_table(provenance['screened'])}"
        )
    ungrouped = sum(record.get("ungrouped", 0) for record in records.values())
    if notes := [*filter(None, (note, _note_on_groups(data, ungrouped, train + evaluation)))]:
        provenance["notes"] = notes
    if min(train, evaluation) < LEAST_DOCUMENTS:
        raise ValueError(
            f"data.held_out={job.division.held_out} leaves {evaluation} of {train + evaluation} documents "
            f"for evaluation and {train} for training; each needs {LEAST_DOCUMENTS}: set another share, "
            "or add documents (a document is never divided between the splits)"
        )
    if data.units and not provenance["units"]:
        raise ValueError(
            f"data.units={data.units!r}: no unit was found in the text; check the field's name or the list"
        )
    return provenance


def _provenance(corpus: Corpus, records: dict[int, dict[str, Any]], job: ShardJob) -> dict[str, Any]:
    """Describe where a store's text came from. Raises ValueError for a source without text."""
    data = job.data
    reading = [ReadCounts() for _ in corpus.sources]
    for unit in corpus.units:
        reading[unit.source].add(ReadCounts(**records[unit.number]["reading"]))
    for source, counts in zip(corpus.sources, reading, strict=True):
        require_documents(source, counts)
    divided = [file for unit in corpus.units for file in records[unit.number]["divided"]]
    units = sum((Counter(record["units"]) for record in records.values()), Counter[str]()) if data.units else {}
    return {
        "inputs": job.inputs,
        **job.division.inputs(),
        "sources": corpus.description(),
        "source_names": relative_names([str(source) for source in corpus.sources]),
        "reading": [counts.to_json() for counts in reading],
        **({"divided": divided} if divided else {}),
        **({"encodings": encodings} if (encodings := corpus.detected_encodings()) else {}),
        **({"skipped": corpus.skipped} if corpus.skipped else {}),
        **({"screened": screening_counts(record["screened"] for record in records.values())} if data.filters else {}),
        "shard_sources": {
            split: [unit.source for unit in corpus.units if records[unit.number]["shards"][split]] for split in SPLITS
        },
        **({"units": dict(sorted(units.items()))} if data.units else {}),
        **({"segmenter": data.segmenter} if data.segmenter != "none" else {}),
        **merge_unknown_letters(records.values()).to_json(),
        **({"added_words": added} if (added := added_words(job.vocab)) is not None else {}),
        "text_bytes": sum(record["text_bytes"] for record in records.values()),
        "unknown_tokens": sum(record["unknown_tokens"] for record in records.values()),
    }


def _warn_of_unknown(manifest: Mapping[str, Any], tokenizer: Tokenizer, data: DataConfig) -> None:
    """Warn (UserWarning) if a store has many unknown tokens."""
    share = manifest["provenance"]["unknown_tokens"] / sum(manifest["splits"][split]["tokens"] for split in SPLITS)
    if share <= NOTICEABLE_UNKNOWN:
        return
    if data.vocab:
        advice = (
            f"the vocabulary {data.vocab} does not fit this text; use one for its language, or leave data.vocab empty "
            "to train one"
        )
    elif data.tokenizer == "wordpiece" and tokenizer.vocab_size >= data.vocab_size:
        advice = f"raise --data.vocab-size, which is {data.vocab_size:,}"
    else:
        advice = "use --data.tokenizer byte_bpe, whose vocabularies have a token for every character"
    warnings.warn(f"{share:.1%} of the tokens are [UNK]: {advice}", stacklevel=2)


def _bytes_needed(corpus: Corpus, records: Mapping[int, Mapping[str, Any]]) -> int:
    """Estimate the size of the store from the finished part."""
    shards = [shard for record in records.values() for shard in record["shards"].values() if shard]
    written = sum(file["bytes"] for shard in shards for file in shard_files(shard))
    read = sum(unit.size for unit in corpus.units if unit.number in records)
    if not read:
        return round(_STORE_BYTES_PER_TEXT_BYTE * corpus.text_bytes)
    return round(written / read * sum(unit.size for unit in corpus.units))
