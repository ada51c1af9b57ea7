"""An epoch's plan: which documents it reads, which sentences form which rows, and plans kept in memory and on disk.

Pairs are formed as google-research/bert forms them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from bertjax.input.randomness import below, derive_key, hash64, uniform
from bertjax.text.ragged import range_indices

# A longer document advances as several at once. Each step of `build_plan` uses up a sentence or more of every document,
# so this bounds the number of steps; it costs one early end of a chunk per so many sentences.
LONGEST_WALK = 2048

Plan = TypeVar("Plan")
PLAN_VERSION = 1  # of the rules for pairs and packing; a change makes other plans
LEAST_KEPT_BYTES = 16 << 20  # a smaller plan is built as quickly as it is read
MOST_KEPT = 4  # in a folder; the current epoch's and the next one's of a run are two

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Reading:
    """The documents of an epoch; a document may be read several times, each time as another copy."""

    document: np.ndarray  # int64 [n]: its number in the split
    copy: np.ndarray  # int64 [n]: 0 for the first time that the run reads it, and so on

    def __len__(self) -> int:
        return len(self.document)


def every_document(documents: int) -> Reading:
    """Each of them once."""
    return Reading(np.arange(documents), np.zeros(documents, np.int64))


def token_shares(tokens: Sequence[int], weights: Sequence[float], temperature: float) -> np.ndarray:
    """Each source's share of the tokens of an epoch, float64 [sources], from the tokens that it has.

    In proportion to `weights`, one for each source; without any, to tokens ** temperature (multilingual BERT smooths
    with 0.7). Raises ValueError for a weight of a source without documents.
    """
    assert not weights or len(weights) == len(tokens), "the config was validated"
    sizes = np.asarray(tokens, np.float64)
    wanted = np.asarray(weights, np.float64) if weights else np.where(sizes > 0, sizes**temperature, 0)
    empty = np.flatnonzero((sizes == 0) & (wanted > 0)).tolist()
    if empty:
        raise ValueError(
            f"data.weights={tuple(weights)}: source {empty[0]} has no training documents to have a share; give it 0"
        )
    return wanted / wanted.sum()


def mixed(edges: np.ndarray, tokens_of: np.ndarray, shares: np.ndarray, seed: int, epoch: int) -> Reading:
    """The documents of one epoch, in which each source has its share of the tokens to within one document.

    The documents of source n are [edges[n], edges[n + 1]), int64 [sources + 1]; `tokens_of` int64 [documents] are their
    lengths. An epoch has as many tokens as the corpus. Each source is read over and over, each time in another random
    order, and an epoch begins where the one before it ended: the times that two documents of a source are read differ
    by at most one.
    """
    total = int(tokens_of.sum())
    parts = [
        _stretch(int(first), tokens_of[first:last], share * total, source, seed, epoch)
        for source, (first, last, share) in enumerate(zip(edges[:-1], edges[1:], shares, strict=True))
        if share > 0
    ]
    return Reading(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("document", "copy")))


def _stretch(first: int, tokens: np.ndarray, wanted: float, source: int, seed: int, epoch: int) -> Reading:
    """The documents of a source that begin in the epoch's part of the endless sequence of its readings."""
    held = int(tokens.sum())
    begin, end = round(epoch * wanted), round((epoch + 1) * wanted)
    documents, copies = [], []
    for number in range(begin // held, (max(end, 1) - 1) // held + 1):
        order = np.argsort(hash64(derive_key(seed, "mixture", source, number), np.arange(len(tokens))), kind="stable")
        starts = number * held + np.cumsum(tokens[order]) - tokens[order]
        read = order[np.searchsorted(starts, begin) : np.searchsorted(starts, end)]
        documents.append(first + read)
        copies.append(np.full(len(read), number, np.int64))
    return Reading(np.concatenate(documents), np.concatenate(copies))


@dataclass(frozen=True)
class EpochPlan:
    """The sentence pairs of one epoch, in no particular order; n arrays' entries belong to pair n.

    Segment A is `a_count` sentences from sentence `a_start` on, B is `b_count` from `b_start` on, before truncation.
    """

    a_start: np.ndarray  # int32 [N], int64 where the split has 2**31 sentences or more
    a_count: np.ndarray  # uint16 [N]
    b_start: np.ndarray  # as a_start
    b_count: np.ndarray  # uint16 [N]
    is_random: np.ndarray  # bool [N]; B comes from another document

    def __len__(self) -> int:
        return len(self.a_start)

    def spans(self, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First sentence and number of sentences of A and B, int64 [n, 2] both, and whether B is random, bool [n]."""
        first = np.stack([self.a_start[pairs], self.b_start[pairs]], axis=1).astype(np.int64)
        count = np.stack([self.a_count[pairs], self.b_count[pairs]], axis=1).astype(np.int64)
        return first, count, self.is_random[pairs]

    def tokens(self, sentences: np.ndarray, pairs: np.ndarray | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of A and of B of some pairs, given `sentence_offsets`."""
        sides = (self.a_start, self.a_count), (self.b_start, self.b_count)
        a, b = (
            sentences[start[pairs] + count[pairs].astype(np.int64)] - sentences[start[pairs]] for start, count in sides
        )
        return a, b


@dataclass
class _Walk:
    """The state of each document, or piece of one; all int64 [n]."""

    entry: np.ndarray  # its index in the epoch's reading
    shift: np.ndarray  # added to a sentence's number where it counts draws: those of a second copy are its own
    position: np.ndarray  # first sentence that no pair has used yet
    end: np.ndarray  # one past its last sentence
    target: np.ndarray  # tokens that a chunk should reach

    def unfinished(self) -> _Walk:
        keep = self.position < self.end
        return self if keep.all() else _Walk(*(getattr(self, f.name)[keep] for f in fields(self)))


def build_plan(
    document_offsets: np.ndarray,
    sentence_offsets: np.ndarray,
    *,
    max_tokens: int,
    short_sequence_probability: float,
    seed: int,
    epoch: int,
    random_b: bool = True,
    reading: Reading | None = None,
    works: np.ndarray | None = None,
) -> EpochPlan:
    """Draw the sentence pairs of one epoch, all documents advancing one chunk at a time.

    Rule: create_instances_from_document of google-research/bert, create_pretraining_data.py; but the random document
    is drawn from the whole split and is always another one.

    `document_offsets` int64[D + 1] counts sentences, `sentence_offsets` int64[S + 1] counts tokens; no sentence and no
    document is empty, D >= 2. `max_tokens` is what A and B may hold together. Without `random_b` only a chunk of one
    sentence gets a random B (google-research/albert, create_pretraining_data.py). `reading` says which documents the
    epoch has, at least two of them different; None is each once. `works` int64[D] says which work each document is a
    piece of: where the epoch has several, a random B is of another work. Depends on nothing but the arguments.
    """
    documents, sentences = np.asarray(document_offsets), np.asarray(sentence_offsets)
    assert len(documents) > 2 and 2 <= max_tokens < 2**16
    start_type = np.int32 if len(sentences) <= 2**31 else np.int64
    types = (start_type, np.uint16, start_type, np.uint16, np.bool_)
    keys = {purpose: derive_key(seed, purpose, epoch) for purpose in ("split", "coin", "document", "sentence")}
    reading = reading or every_document(len(documents) - 1)
    walk = _begin(documents, reading, max_tokens, short_sequence_probability, seed, epoch)
    others = _Others(reading.document, works)
    columns: list[list[np.ndarray]] = [[] for _ in types]
    while len(walk.position):
        made = _advance(walk, others, documents, sentences, keys, random_b)
        for column, values, kind in zip(columns, made, types, strict=True):
            column.append(values.astype(kind))
        walk = walk.unfinished()
    columns.reverse()  # each list of parts is freed as soon as it is joined
    return EpochPlan(*(np.concatenate(columns.pop()) for _ in types))


def _begin(
    documents: np.ndarray, reading: Reading, max_tokens: int, short_probability: float, seed: int, epoch: int
) -> _Walk:
    """Every document at its start, the long ones cut into even pieces, with its target length in this epoch."""
    number = reading.document + reading.copy * (len(documents) - 1)
    is_short = uniform(hash64(derive_key(seed, "short", epoch), number)) < short_probability
    short_target = 2 + below(hash64(derive_key(seed, "target", epoch), number), max_tokens - 1)
    target = np.where(is_short, short_target, max_tokens)
    entry, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], LONGEST_WALK)
    shift = reading.copy[entry] * int(documents[-1])
    return _Walk(entry, shift, begin, end, target[entry])


def even_pieces(first: np.ndarray, last: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ranges [first, last) cut into even pieces of at most `longest`: owner, begin and end of each; int64 [n] each."""
    sizes = last - first
    pieces = -(-sizes // longest)
    owner = np.repeat(np.arange(len(first)), pieces)
    piece = range_indices(np.zeros_like(pieces), pieces)
    size, count, base = sizes[owner], pieces[owner], first[owner]
    return owner, base + size * piece // count, base + size * (piece + 1) // count


def _advance(
    walk: _Walk,
    others: _Others,
    documents: np.ndarray,
    sentences: np.ndarray,
    keys: dict[str, int],
    random_b: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Move every document of the walk by one chunk; return the fields of the pairs made, in EpochPlan's order.

    A chunk's first sentence starts no other chunk of its copy, so its number is the counter of all draws.
    """
    start, number = walk.position, walk.position + walk.shift
    chunk_end = np.minimum(_reach(sentences, start, walk.target), walk.end)
    in_chunk = chunk_end - start
    a_count = 1 + below(hash64(keys["split"], number), np.maximum(in_chunk - 1, 1))
    a_end = start + a_count
    is_random = in_chunk == 1
    if random_b:
        is_random |= hash64(keys["coin"], number) >> 63 == 1

    drawn = np.flatnonzero(is_random)
    other = others.draw(hash64(keys["document"], number[drawn]), walk.entry[drawn])
    by_place = np.argsort(other)  # looked up in the split's order: 5 s instead of 11 for 10 million pairs
    drawn, other = drawn[by_place], other[by_place]
    first, last = documents[other], documents[other + 1]
    random_start = first + below(hash64(keys["sentence"], number[drawn]), last - first)
    wanted = walk.target[drawn] - (sentences[a_end[drawn]] - sentences[start[drawn]])
    b_start, b_end = a_end.copy(), chunk_end.copy()
    b_start[drawn] = random_start
    b_end[drawn] = np.minimum(_reach(sentences, random_start, np.maximum(wanted, 1)), last)

    walk.position = np.where(is_random, a_end, chunk_end)  # the sentences that a random B displaced are put back
    return start, a_count, b_start, b_end - b_start, is_random


class _Others:
    """The documents of a reading that a random B may be of."""

    def __init__(self, read: np.ndarray, works: np.ndarray | None) -> None:
        """`read` int64[R] are the documents of the reading; `works` as `build_plan` has it."""
        self._read = read
        self._works = works[read] if works is not None and len(np.unique(works[read])) > 1 else None
        if self._works is not None:
            self._order = np.argsort(self._works, kind="stable")
            self._sorted = self._works[self._order]

    def draw(self, bits: np.ndarray, entry: np.ndarray) -> np.ndarray:
        """A document for each draw, uint64[n], that is not that of `entry`, nor of its work; int64[n]."""
        if self._works is not None:
            first, last = (np.searchsorted(self._sorted, self._works[entry], side) for side in ("left", "right"))
            other = below(bits, len(self._read) - (last - first))
            return self._read[self._order[other + np.where(other >= first, last - first, 0)]]
        read = self._read
        other = below(bits, len(read) - 1)
        other += other >= entry
        # Another copy of the same document would follow A in a way: go on to the next one that is different.
        while (same := read[other] == read[entry]).any():
            other[same] = (other[same] + 1) % len(read)
        return read[other]


def _reach(sentences: np.ndarray, start: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """One past the sentence with which the sentences from `start` on hold `tokens` or more.

    The keys keep the dtype of the offsets: searchsorted would copy the whole array to another one.
    """
    wanted = (sentences[start] + tokens).astype(sentences.dtype, copy=False)
    return np.searchsorted(sentences, wanted, side="left")


@dataclass(frozen=True)
class SentencePlan:
    """The rows of one epoch, in no particular order: `count` sentences from sentence `start` on."""

    start: np.ndarray  # int32 [N], int64 where the split has 2**31 sentences or more
    count: np.ndarray  # uint16 [N]

    def __len__(self) -> int:
        return len(self.start)

    def spans(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `EpochPlan.spans`, with one range of sentences instead of A and B: int64 [n, 1] twice, and bool [n]."""
        first, count = self.start[rows, None].astype(np.int64), self.count[rows, None].astype(np.int64)
        return first, count, np.zeros(len(rows), bool)


def build_sentence_plan(
    documents: np.ndarray, sentences: np.ndarray, reading: Reading, *, room: int, crossing: bool, seed: int, epoch: int
) -> SentencePlan:
    """Cut the text of an epoch into rows of `room` tokens, [CLS] and the last [SEP] not counted.

    A longer sentence has a row of its own, and is truncated there. With `crossing` a row may continue after the end of
    a document, which takes a token for a [SEP]; `reading` must then be every document once. The sentences with which
    such rows begin change from epoch to epoch.
    """
    begin, end = _stretches(documents, reading, crossing, derive_key(seed, "stretches", epoch))

    def row_ends(begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        return np.minimum(_row_ends(documents, sentences, begin, room, crossing), end)

    return cut_ranges(begin, end, row_ends, len(sentences))


def cut_ranges(
    begin: np.ndarray, end: np.ndarray, first_ends: Callable[[np.ndarray, np.ndarray], np.ndarray], offsets: int
) -> SentencePlan:
    """Rows from ranges of sentences [begin, end), int64 [n], which advance in parallel.

    `first_ends` says where the first row of each range ends; `offsets` is the number of sentence offsets.
    """
    starts, counts = [], []
    while len(begin):
        stop = first_ends(begin, end)
        starts.append(begin)
        counts.append(stop - begin)
        unfinished = stop < end
        begin, end = stop[unfinished], end[unfinished]
    kind = np.int32 if offsets <= 2**31 else np.int64
    return SentencePlan(np.concatenate(starts).astype(kind), np.concatenate(counts).astype(np.uint16))


def _stretches(documents: np.ndarray, reading: Reading, crossing: bool, key: int) -> tuple[np.ndarray, np.ndarray]:
    """The ranges of sentences [begin, end) that are cut into rows in parallel."""
    if not crossing:
        _, begin, end = even_pieces(documents[reading.document], documents[reading.document + 1], LONGEST_WALK)
        return begin, end
    shift = int(below(hash64(key, np.zeros(1, np.int64)), LONGEST_WALK)[0])
    edges = np.arange(-shift, int(documents[-1]), LONGEST_WALK)
    edges = np.unique(np.append(np.maximum(edges, 0), documents[-1]))
    return edges[:-1], edges[1:]


def _row_ends(documents: np.ndarray, sentences: np.ndarray, begin: np.ndarray, room: int, crossing: bool) -> np.ndarray:
    """One past the last sentence of the row that begins with each sentence: int64 [n], at least one further on."""
    home = np.searchsorted(documents, begin, side="right")
    left = np.full(len(begin), room)
    while True:
        limit = (sentences[begin] + left).astype(sentences.dtype, copy=False)
        stop = np.maximum(np.searchsorted(sentences, limit, side="right") - 1, begin + 1)
        if not crossing:
            return stop
        # Each document that ends inside takes a [SEP] from the text; what then fits may hold fewer ends again.
        ends = np.searchsorted(documents, stop, side="left") - home
        taken = sentences[stop] - sentences[begin] + ends
        over = (taken > room) & (stop > begin + 1)
        if not over.any():
            return stop
        left[over] -= np.maximum(taken - room, 1)[over]


class PlanCache(Generic[Plan]):
    """The few plans in use, each built once, by whoever needs it first or ahead of time in the background."""

    def __init__(self, build: Callable[[int], Plan]) -> None:
        self._build = build
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, Future[Plan]] = OrderedDict()
        self.capacity = 2  # plans kept: the current one and the next

    def get(self, epoch: int) -> Plan:
        """The plan of an epoch; waits for it, and raises what building it raised."""
        plan, is_new = self._claim(epoch)
        if is_new:
            self._fill(plan, epoch)
        return plan.result()

    def prepare(self, epoch: int) -> None:
        """Build the plan of an epoch in the background, unless it is built or being built."""
        plan, is_new = self._claim(epoch)
        if is_new:
            threading.Thread(target=self._fill, args=(plan, epoch), name=f"plan-{epoch}", daemon=True).start()

    def _claim(self, epoch: int) -> tuple[Future[Plan], bool]:
        with self._lock:
            is_new = epoch not in self._plans
            plan = self._plans.setdefault(epoch, Future())
            self._plans.move_to_end(epoch)
            while len(self._plans) > self.capacity:
                self._plans.popitem(last=False)
        return plan, is_new

    def _fill(self, plan: Future[Plan], epoch: int) -> None:
        try:
            plan.set_result(self._build(epoch))
        except BaseException as error:
            plan.set_exception(error)


class PlanFiles:
    """The plans in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load_or_make(self, made_of: Mapping[str, Any], make: Callable[[], Arrays]) -> Arrays:
        """The arrays of the plan that is made of these JSON values: memory-mapped from disk, or made and kept."""
        inputs = json.dumps({"version": PLAN_VERSION, **made_of}, sort_keys=True)
        folder = self._folder / f"plan-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"
        if (arrays := self._load(folder, inputs)) is not None:
            return arrays
        arrays = make()
        if sum(array.nbytes for array in arrays.values()) >= LEAST_KEPT_BYTES:
            self._keep(folder, inputs, arrays)
        return arrays

    def _load(self, folder: Path, inputs: str) -> Arrays | None:
        if not folder.is_dir():
            return None
        try:
            about = json.loads((folder / "plan.json").read_text())
            if about["inputs"] != inputs:
                raise ValueError("it is of other inputs")
            for name, digest in about["sha256"].items():
                if _digest(folder / f"{name}.npy") != digest:
                    raise ValueError(f"{name}.npy is damaged")
            os.utime(folder)
            return {
                name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in about["sha256"]
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            warnings.warn(f"plan {folder}: {error}; it is built again", stacklevel=2)
            shutil.rmtree(folder, ignore_errors=True)
            return None

    def _keep(self, folder: Path, inputs: str, arrays: Arrays) -> None:
        """Write a plan, and remove the ones that were not used for longest; a full disk only costs the next start."""
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=self._folder))
        try:
            for name, array in arrays.items():
                np.save(partial / f"{name}.npy", array, allow_pickle=False)
            digests = {name: _digest(partial / f"{name}.npy") for name in arrays}
            (partial / "plan.json").write_text(json.dumps({"inputs": inputs, "sha256": digests}))
            os.chmod(partial, 0o755)
            os.rename(partial, folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            if not folder.is_dir():  # another host may have been quicker
                warnings.warn(f"plan {folder} could not be kept ({error}); it is built again when needed", stacklevel=2)
            return
        kept = sorted(self._folder.glob("plan-????????????????"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
