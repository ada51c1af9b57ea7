"""Apply the filters of `data.filters` to the documents of a corpus.

Filters that judge documents one by one do it while shards are made. A filter that compares documents needs an earlier
pass over all text, which writes a verdict per document and the documents' signatures to files next to each unit's
record. Once all units have them, the copies among all documents are found, and each unit gets its final verdicts. All
files are a pure function of the text and the filters, so any number of processes and machines makes the same ones.

A verdict is 0 for a retained document, or n for the n-th entry of `list_reasons`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bertjax.storage.atomic_directories import publish, scratch_dir
from bertjax.storage.files import write_durably
from bertjax.storage.json_documents import Count, read_json
from bertjax.storage.remote import AnyPath, read_range
from bertjax.text.corpus import Unit
from bertjax.text.documents import Document
from bertjax.text.filters.filter import Filter, Signature
from bertjax.text.filters.registry import choose
from bertjax.text.sources.registry import read_documents

_AT_ONCE = 1 << 26  # documents whose values are compared at once: 3 GB of memory
_VALUE_BYTES = 8
_DONE = "unit-verdicts.json"

DrawnDocument = tuple[Document, tuple[float, float]]  # with its draws


class ComparisonRecord(TypedDict):
    """The record of a unit that was read to compare its documents."""

    inputs: str
    documents: Count


class Screen:
    """Leaves out documents of a unit, and counts all documents and those left out by reason.

    `names` are `data.filters`. `verdicts`, uint8 [documents], are the final ones of all filters; without them each
    document is judged by itself.
    """

    def __init__(self, names: Sequence[str], verdicts: np.ndarray | None = None) -> None:
        self._filters, self._verdicts = choose(names), verdicts
        self._reasons = list_reasons(self._filters)
        self.documents = 0
        self.left_out: Counter[str] = Counter()

    def passing(self, documents: Iterable[DrawnDocument]) -> Iterator[DrawnDocument]:
        """Yield the parts of the retained documents."""
        is_retained = has_earlier_piece = False
        for document, drawn in documents:
            if not document.is_continuation:
                if self._verdicts is None:
                    verdict = judge(self._filters, document.text)
                else:
                    verdict = int(self._verdicts[self.documents])
                is_retained = not verdict
                self.documents += 1
                if verdict:
                    self.left_out[self._reasons[verdict - 1]] += 1
                if not document.is_of_same_work:
                    has_earlier_piece = False
                elif is_retained and not has_earlier_piece:
                    document = replace(document, is_of_same_work=False)  # it is now the first of its work
                has_earlier_piece |= is_retained
            if is_retained:
                yield document, drawn

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON."""
        return {"documents": self.documents, "left_out": dict(self.left_out)}


def screening_counts(units: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the counts of units, each from `Screen.to_json`."""
    documents, left_out = 0, Counter[str]()
    for counts in units:
        documents += counts["documents"]
        left_out.update(counts["left_out"])
    return {"documents": documents, "left_out": dict(sorted(left_out.items()))}


def screening_table(counts: Mapping[str, Any]) -> str:
    """Format a table of the documents that filters left out: number and reason."""
    left_out = counts["left_out"]
    head = f"documents that data.filters left out: {sum(left_out.values()):,} of {counts['documents']:,}"
    return "\n".join((head, *(f"  {count:>12,}  {reason}" for reason, count in left_out.items())))


def list_reasons(filters: Sequence[Filter]) -> list[str]:
    """All reasons of the filters in their order, each after its filter's name."""
    return [f"{one.name}: {reason}" for one in filters for reason in one.reasons]


def judge(filters: Sequence[Filter], text: str) -> int:
    """Return a document's verdict by the filters that judge documents one by one.

    Raises ValueError for a filter that returns a reason that it does not list.
    """
    before = 0
    for one in filters:
        if one.broken_rule is not None and (reason := one.broken_rule(text)):
            if reason not in one.reasons:
                raise ValueError(
                    f"filter {one.name!r} returned {reason!r}, which is not one of its reasons {one.reasons}"
                )
            return before + 1 + one.reasons.index(reason)
        before += len(one.reasons)
    return 0


def compares(names: Sequence[str]) -> bool:
    """Whether one of the filters compares documents."""
    return any(one.signature for one in choose(names))


def compare_unit(unit: Unit, inputs: str, names: Sequence[str], longest: int, folder: AnyPath) -> dict[str, Any]:
    """Read a unit, write its first verdicts and signatures to `folder`; return its record, which is published last."""
    filters = choose(names)
    verdicts = bytearray()
    signatures: dict[str, list[np.ndarray]] = {one.name: [] for one in filters if one.signature}
    current: dict[str, Signature] = {}  # of the document that is being read

    def end_document() -> None:
        for name, signature in current.items():
            signatures[name].append(signature.values())

    for document in (document for file in unit.files for document in read_documents(file, None, longest)):
        if not document.is_continuation:
            end_document()
            verdicts.append(judge(filters, document.text))
            current = {one.name: one.signature() for one in filters if one.signature}
        for signature in current.values():
            signature.add(document.text)
    end_document()
    record = {"inputs": inputs, "documents": len(verdicts)}
    with scratch_dir(folder, f"{unit.name}-") as scratch:
        files = {_verdict_file(unit, "first"): bytes(verdicts)}
        for one in filters:
            if one.signature:
                rows = np.array(signatures[one.name], np.uint64).reshape(-1, one.columns)
                files[_signature_file(unit, one)] = np.ascontiguousarray(rows.T).astype("<u8").tobytes()
        files[f"{unit.name}.compared.json"] = json.dumps(record).encode()
        publish_files(files, Path(scratch), folder)
    return record


def read_comparison(unit: Unit, inputs: str, folder: AnyPath) -> dict[str, Any] | None:
    """Read the record that `compare_unit` wrote for the same inputs; None if there is none."""
    return read_record(folder / f"{unit.name}.compared.json", ComparisonRecord, inputs)


def has_verdicts(inputs: str, folder: AnyPath) -> bool:
    """Whether the final verdicts on all units exist."""
    return read_record(folder / _DONE, ComparisonRecord, inputs) is not None


def write_verdicts(
    units: Sequence[Unit], records: dict[int, dict[str, Any]], inputs: str, names: Sequence[str], folder: AnyPath
) -> None:
    """Find the copies among the documents of all units, in their order, and write the final verdicts."""
    sizes = [records[unit.number]["documents"] for unit in units]
    verdicts = np.concatenate(
        [
            np.zeros(0, np.uint8),
            *(_read(folder / _verdict_file(unit, "first"), 0, size) for unit, size in zip(units, sizes, strict=True)),
        ]
    )
    before = 0
    for one in choose(names):
        if one.signature:
            # Compare documents that earlier filters retain, even if a later filter has judged them already.
            is_compared = (verdicts == 0) | (verdicts > before)
            files = [folder / _signature_file(unit, one) for unit in units]
            verdicts[later_copies(files, sizes, one.columns, is_compared)] = before + 1
        before += len(one.reasons)
    ends = np.cumsum(sizes)
    with scratch_dir(folder, "unit-verdicts-") as scratch:
        for unit, size, end in zip(units, sizes, ends.tolist(), strict=True):
            content = verdicts[end - size : end].tobytes()
            publish_files({_verdict_file(unit, "final"): content}, Path(scratch), folder)
        done = json.dumps({"inputs": inputs, "documents": len(verdicts)}).encode()
        publish_files({_DONE: done}, Path(scratch), folder)


def read_record(path: AnyPath, kind: type, inputs: str) -> dict[str, Any] | None:
    """Read a JSON object of type `kind`; None if it is missing, damaged, or has other `inputs`."""
    try:
        record: dict[str, Any] = read_json(path, kind)
    except (FileNotFoundError, ValueError):
        return None
    return record if record["inputs"] == inputs else None


def read_verdicts(unit: Unit, folder: AnyPath) -> np.ndarray:
    """The final verdicts on the documents of a unit, uint8 [documents]."""
    return np.frombuffer((folder / _verdict_file(unit, "final")).read_bytes(), np.uint8)


def later_copies(
    files: Sequence[AnyPath], sizes: Sequence[int], columns: int, is_compared: np.ndarray, at_once: int = _AT_ONCE
) -> np.ndarray:
    """Mark the documents that share a column's value with an earlier one: bool [documents].

    Compares documents in `is_compared`, about `at_once` values at a time. `files` have the signatures of `sizes`
    documents each, column after column. A document that is a copy itself still makes later ones copies, so a chain of
    similar documents keeps one.
    """
    is_copy = np.zeros(len(is_compared), bool)
    parts = max(-(-len(is_compared) // at_once), 1)
    firsts = np.cumsum(sizes) - sizes
    for column in range(columns):
        for part in range(parts):
            values, places = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
            for file, size, first in zip(files, sizes, firsts.tolist(), strict=True):
                start = column * size * _VALUE_BYTES
                own = _read(file, start, start + size * _VALUE_BYTES).view("<u8").astype(np.uint64)
                chosen = np.flatnonzero((own % parts == part) & (own != 0) & is_compared[first : first + size])
                values.append(own[chosen])
                places.append(first + chosen)
            value, place = np.concatenate(values), np.concatenate(places)
            order = np.argsort(value, kind="stable")
            value = value[order]
            is_copy[place[order[1:][value[1:] == value[:-1]]]] = True
    return is_copy


def _read(file: AnyPath, start: int, stop: int) -> np.ndarray:
    """Read a range of a file, uint8 [stop - start]."""
    return np.frombuffer(read_range(file, start, stop) if stop > start else b"", np.uint8)


def publish_files(files: Mapping[str, bytes], scratch: Path, folder: AnyPath) -> None:
    """Write files to `scratch` and move each to `folder`, in their order."""
    for name, content in files.items():
        write_durably(scratch / name, content)
        publish(scratch / name, folder)


def _verdict_file(unit: Unit, kind: str) -> str:
    return f"{unit.name}.{kind}-verdicts"


def _signature_file(unit: Unit, one: Filter) -> str:
    return f"{unit.name}.{one.name}"
