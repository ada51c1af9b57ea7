"""An epoch: its documents, the pairs formed from them, and which pairs share a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from bertjax.config import SHORTEST_ROW, DataConfig
from bertjax.input.augmentations.registry import room_of
from bertjax.input.group_sampling import one_of_each_group
from bertjax.input.layout import BERT, Split, Template
from bertjax.input.packing import Packing, pack
from bertjax.input.plan import EpochPlan, Reading, build_plan, every_document
from bertjax.input.plan_files import PlanCache, PlanFiles
from bertjax.input.randomness import derive_key, hash64
from bertjax.input.record_rows import BUILDERS, TokenPlan
from bertjax.input.sentence_rows import SentencePlan, build_document_plan, build_sentence_plan
from bertjax.text.ragged import range_indices

LEAST_DOCUMENTS = 2
SMALL_PLANS_ROWS = 2**20  # a batch of a tiny corpus may straddle many epochs: keep as many plans as this many rows fill

_INPUTS = (  # fields of DataConfig on which a plan depends
    "rows",
    "sequence_length",
    "short_sequence_probability",
    "weights",
    "temperature",
    "packing",
    "pairs_per_row",
    "augment",
    "sampling",
)


@dataclass(frozen=True)
class Epoch:
    """The pairs of an epoch, or its runs of sentences, and which of them share a row."""

    plan: EpochPlan | SentencePlan | TokenPlan
    packing: Packing | None  # None: each pair has a row of its own

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.plan if self.packing is None else self.packing)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as they are stored in a file."""
        packing = {} if self.packing is None else vars(self.packing)
        return {**vars(self.plan), **packing}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Epoch:
        """The inverse of `arrays`."""
        kind = EpochPlan if "a_start" in arrays else TokenPlan if "begin" in arrays else SentencePlan
        plan = kind(**{f.name: arrays[f.name] for f in fields(kind)})
        packed = [arrays[f.name] for f in fields(Packing) if f.name in arrays]
        return cls(plan, Packing(*packed) if packed else None)

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(index into `rows` of each pair, pair) of these rows in order; int64 [N] both."""
        if self.packing is None:
            return np.arange(len(rows)), rows
        first = self.packing.offsets[rows]
        counts = self.packing.offsets[rows + 1] - first
        row = np.repeat(np.arange(len(rows)), counts)
        return row, self.packing.order[range_indices(first, counts)].astype(np.int64)


class Epochs:
    """The epochs of a run over one split, each built at its first use. Thread-safe.

    `random_b` as in `build_plan`; `template` has the number of special tokens in a row. `folder` caches plans that take
    long to build, for the next start and for other hosts.

    Raises ValueError if the split has fewer than two documents, the sequence length is too short for a pair, or the
    sources cannot be mixed as configured.
    """

    def __init__(
        self,
        split: Split,
        data: DataConfig,
        seed: int,
        folder: Path | None = None,
        *,
        random_b: bool = True,
        template: Template = BERT,
    ) -> None:
        documents = len(split.document_offsets) - 1
        if documents < LEAST_DOCUMENTS:
            raise ValueError(
                f"the split has {documents} document(s); sentence pairs need at least {LEAST_DOCUMENTS}: add text to "
                f"data.sources, or, if this is the held-out split, raise data.held_out={data.held_out}"
            )
        if data.sequence_length < SHORTEST_ROW:
            raise ValueError(
                f"data.sequence_length={data.sequence_length} is too short for a pair; use {SHORTEST_ROW} or more"
            )
        self._split, self._data, self._seed = split, data, seed
        self._random_b, self._template = random_b, template
        self.shares: np.ndarray | None = None  # of an epoch's tokens, float64 [sources]; None: every document once
        if data.is_mixture:
            edges = split.sentence_offsets[split.document_offsets[split.source_edges]]
            read = data.is_active if data.active_sources else [True] * (len(edges) - 1)
            tokens = np.where(read, np.diff(edges), 0).tolist()
            self.shares = token_shares(tokens, data.weights, data.temperature)
        self._files = PlanFiles(folder) if folder else None
        self._cache = PlanCache(self._build)
        self.rows = len(self.get(0))
        self._cache.capacity = max(self._cache.capacity, SMALL_PLANS_ROWS // self.rows)

    def get(self, number: int) -> Epoch:
        """Return an epoch, building it if necessary."""
        return self._cache.get(number)

    def prepare(self, number: int) -> None:
        """Start to build an epoch in the background."""
        self._cache.prepare(number)

    def _build(self, number: int) -> Epoch:
        if self._files is None:
            return self._make(number)
        inputs = {key: getattr(self._data, key) for key in _INPUTS} | {
            "seed": self._seed,
            "epoch": number,
            "random_b": self._random_b,
            "separators": self._template.separators,
        }
        if self._data.is_mixture:
            inputs["source_edges"] = self._split.source_edges.tolist()
        if self._data.active_sources:
            inputs["is_active"] = self._data.is_active
        arrays = self._files.load_or_make(inputs, lambda: self._make(number).arrays())
        return Epoch.from_arrays(arrays)

    def _make(self, number: int) -> Epoch:
        data = self._data
        plan = self._pairs(number) if data.rows == "pairs" else self._sentences(number)
        if data.packing == "none":
            return Epoch(plan, None)
        key = derive_key(self._seed, "pack", number)
        return Epoch(plan, pack(self._lengths(plan), data.sequence_length, data.pairs_per_row, key))

    def _pairs(self, number: int) -> EpochPlan:
        return build_plan(
            self._split.document_offsets,
            self._split.sentence_offsets,
            max_tokens=self._data.sequence_length - self._template.pair_tokens,
            short_sequence_probability=self._data.short_sequence_probability,
            seed=self._seed,
            epoch=number,
            random_b=self._random_b,
            reading=self._reading(number),
            works=self._split.works,
        )

    def _sentences(self, number: int) -> SentencePlan | TokenPlan:
        documents, sentences = self._split.document_offsets, self._split.sentence_offsets
        reading = self._reading(number) or every_document(len(documents) - 1)
        room = self._data.sequence_length - self._template.text_tokens
        if build := BUILDERS.get(self._data.rows):
            return build(documents, sentences, reading, room=room, seed=self._seed, epoch=number)
        if self._data.rows == "documents":
            return build_document_plan(documents, sentences, reading, room=room)
        crossing = self._data.rows == "full_sentences"
        return build_sentence_plan(
            documents, sentences, reading, room=room, crossing=crossing, seed=self._seed, epoch=number
        )

    def _lengths(self, plan: EpochPlan | SentencePlan | TokenPlan) -> np.ndarray:
        """Tokens of each pair or run of sentences, special ones included: int64 [N]."""
        sentences, length = self._split.sentence_offsets, self._data.sequence_length
        if isinstance(plan, EpochPlan):
            return np.minimum(sum(plan.tokens(sentences)) + self._template.pair_tokens, length)
        if isinstance(plan, TokenPlan):
            room = length - self._template.text_tokens
            return room_of(self._data.augment, plan.length, room) + self._template.text_tokens
        begin, end = plan.start, plan.start + plan.count.astype(plan.start.dtype)
        documents = self._split.document_offsets
        crossed = np.searchsorted(documents, end, side="left") - np.searchsorted(documents, begin, side="right")
        return np.minimum(sentences[end] - sentences[begin] + crossed + self._template.text_tokens, length)

    def _reading(self, number: int) -> Reading | None:
        """The documents of an epoch; None: each once."""
        if self.shares is not None:
            return self._mixture(number, self.shares)
        if self._data.sampling == "records":
            return None
        if (groups := self._split.groups) is None:
            raise ValueError("data.sampling='groups': the token store has no groups; prepare it with data.groups")
        return one_of_each_group(groups, self._seed, number)

    def _mixture(self, epoch: int, shares: np.ndarray) -> Reading:
        split = self._split
        lengths = np.diff(split.sentence_offsets[split.document_offsets])
        reading = mixed(split.source_edges, lengths, shares, self._seed, epoch)
        if len(np.unique(reading.document)) < LEAST_DOCUMENTS:
            raise ValueError(
                f"data.weights={self._data.weights}, data.temperature={self._data.temperature}: epoch {epoch} has "
                f"fewer than {LEAST_DOCUMENTS} documents, which sentence pairs need; give more text or other shares"
            )
        return reading


def token_shares(tokens: Sequence[int], weights: Sequence[float], temperature: float) -> np.ndarray:
    """Each source's share of the tokens of an epoch, float64 [sources]; `tokens` is the size of each source.

    Proportional to `weights`, one per source; without weights to tokens ** temperature (multilingual BERT smooths with
    0.7). Raises ValueError for a positive weight of a source without documents.
    """
    assert not weights or len(weights) == len(tokens), "the config was validated"
    sizes = np.asarray(tokens, np.float64)
    target = np.asarray(weights, np.float64) if weights else np.where(sizes > 0, sizes**temperature, 0)
    empty = np.flatnonzero((sizes == 0) & (target > 0)).tolist()
    if empty:
        raise ValueError(
            f"data.weights={tuple(weights)}: source {empty[0]} has no training documents; give it the weight 0"
        )
    return target / target.sum()


def mixed(edges: np.ndarray, lengths: np.ndarray, shares: np.ndarray, seed: int, epoch: int) -> Reading:
    """The documents of one epoch, in which each source has its share of the tokens to within one document.

    The documents of source n are [edges[n], edges[n + 1]), int64 [sources + 1]; `lengths` int64 [documents] are their
    lengths. An epoch has as many tokens as the corpus. Each source is read over and over, each time in another random
    order, and an epoch begins where the one before it ended: the times that two documents of a source are read differ
    by at most one.
    """
    total = int(lengths.sum())
    parts = [
        _stretch(int(first), lengths[first:last], share * total, source, seed, epoch)
        for source, (first, last, share) in enumerate(zip(edges[:-1], edges[1:], shares, strict=True))
        if share > 0
    ]
    return Reading(np.concatenate([part.document for part in parts]), np.concatenate([part.copy for part in parts]))


def _stretch(first: int, tokens: np.ndarray, target: float, source: int, seed: int, epoch: int) -> Reading:
    """The documents of a source that begin in the epoch's part of the endless sequence of its readings."""
    held = int(tokens.sum())
    begin, end = round(epoch * target), round((epoch + 1) * target)
    documents, copies = [], []
    for number in range(begin // held, (max(end, 1) - 1) // held + 1):
        order = np.argsort(hash64(derive_key(seed, "mixture", source, number), np.arange(len(tokens))), kind="stable")
        starts = number * held + np.cumsum(tokens[order]) - tokens[order]
        read = order[np.searchsorted(starts, begin) : np.searchsorted(starts, end)]
        documents.append(first + read)
        copies.append(np.full(len(read), number, np.int64))
    return Reading(np.concatenate(documents), np.concatenate(copies))
