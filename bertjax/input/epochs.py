"""Planned windows of a run: the sentence pairs formed from each window's text, and which pairs share a row."""

from __future__ import annotations

import hashlib
import json
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from bertjax.config import SHORTEST_ROW, DataConfig
from bertjax.input.augmentations.registry import slack_tokens
from bertjax.input.layout import BERT, Template, TextView
from bertjax.input.packing import Packing, pack
from bertjax.input.plan import EpochPlan, Reading, build_plan, every_document
from bertjax.input.randomness import derive_key
from bertjax.input.record_rows import BUILDERS, TokenPlan
from bertjax.input.sentence_rows import SentencePlan, build_document_plan, build_sentence_plan
from bertjax.input.windows import WHOLE_BATCH, WINDOW_TOKENS, Lane, Windows, one_of_each_group, token_shares
from bertjax.storage.files import replace_text
from bertjax.storage.json_documents import Count, Sha256, read_json
from bertjax.text.ragged import range_indices
from bertjax.text.store.format import SplitView
from bertjax.text.store.manifest import json_sha256

LEAST_DOCUMENTS = 2
SMALL_PLANS_ROWS = 2**20  # total rows of the plans kept for a tiny corpus, as a batch may straddle many epochs
SAMPLE_TOKENS = 1 << 22  # the rows of a larger text are estimated from a sample
_SAMPLED_SOURCES = 16  # largest sources of a mixture that the estimate samples

_PLAN_VERSION = 2  # version of the rules for pairs, packing and windows; a change invalidates stored row counts
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
class PlannedWindow:
    """The pairs (or sequences of sentences) of a text, and which of them share a row."""

    text: TextView
    plan: EpochPlan | SentencePlan | TokenPlan
    packing: Packing | None  # None: each pair has its own row

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.plan if self.packing is None else self.packing)

    def pairs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of these rows in order: the index into `rows` and the pair's number, int64 [N] both."""
        if self.packing is None:
            return np.arange(len(rows)), rows
        first = self.packing.offsets[rows]
        counts = self.packing.offsets[rows + 1] - first
        row = np.repeat(np.arange(len(rows)), counts)
        return row, self.packing.order[range_indices(first, counts)].astype(np.int64)


class Epochs:
    """The windows of a run over one split (see `Windows`), each planned when it is first read. Thread-safe.

    If the split is one window, every epoch has as many rows as the first. If it has several, the windows follow each
    other, each with its own number of rows; `folder` stores these numbers, so that a resumed run does not plan its
    earlier windows again. `random_b` as in `build_plan`; `template` is the layout of special tokens.

    Raises ValueError if the split has fewer than two documents, the sequence length is too short for a pair, or the
    sources cannot be mixed as configured.
    """

    def __init__(
        self,
        split: TextView,
        data: DataConfig,
        seed: int,
        folder: Path | None = None,
        *,
        random_b: bool = True,
        template: Template = BERT,
        window_tokens: int = WINDOW_TOKENS,
        lane: Lane = WHOLE_BATCH,
    ) -> None:
        if split.num_documents < LEAST_DOCUMENTS:
            raise ValueError(
                f"the split has {split.num_documents} document(s); sentence pairs need at least {LEAST_DOCUMENTS}. Add "
                f"text to data.sources, or, if this is the held-out split, raise data.held_out={data.held_out}"
            )
        if data.sequence_length < SHORTEST_ROW:
            raise ValueError(
                f"data.sequence_length={data.sequence_length} is too short for a pair; use {SHORTEST_ROW} or more"
            )
        self._split, self._data, self._seed = split, data, seed
        self._random_b, self._template = random_b, template
        self.shares: np.ndarray | None = None  # source shares of an epoch's tokens, float64; None: each document once
        if data.is_mixture:
            tokens = split.source_tokens
            read = data.is_active if data.active_sources else (True,) * len(tokens)
            if len(read) != len(tokens):
                raise ValueError(
                    f"data.active_sources={data.active_sources}: the token store has {len(tokens)} sources, and "
                    f"data.sources has {len(read)}; give the store's sources in its order"
                )
            self.shares = token_shares(np.where(read, tokens, 0).tolist(), data.weights, data.temperature)
            self._require_documents(int(np.diff(split.source_edges)[self.shares > 0].sum()), 0)
        if data.sampling == "groups":  # a group's members may be anywhere in the text
            if split.groups is None:
                raise ValueError("data.sampling='groups': the token store has no groups; prepare it with data.groups")
            window_tokens, lane = split.num_tokens, WHOLE_BATCH
        self._windows = Windows(split, self.shares, seed, window_tokens, lane)
        self.several = not self._windows.is_whole  # the run has several windows, each with its own text
        self._cache = PlanCache()
        self._counts = RowCounts(folder if self.several else None, self._plan_inputs(window_tokens, lane))
        self._counting = threading.Lock()

    @cached_property
    def rows(self) -> int:
        """Rows in an epoch; with several windows an estimate from the first window."""
        first = self.get(0)
        if self.several:
            return round(len(first) * self._split.num_tokens / self._windows.get(0).num_tokens)
        return len(first)

    @cached_property
    def estimated_rows(self) -> int:
        """Estimated rows in an epoch, at a cost that does not grow with the text; exact for a small text."""
        split = self._split
        if not isinstance(split, SplitView) or split.num_tokens <= SAMPLE_TOKENS or self._data.sampling == "groups":
            return self.rows
        views = [(1.0, split)]
        if self.shares is not None:  # sources may differ in tokens per row
            largest = np.argsort(-self.shares, kind="stable")[:_SAMPLED_SOURCES].tolist()
            each = [(float(self.shares[source]), split.select_sources(source)) for source in largest]
            views = [(share, view) for share, view in each if share and view.num_documents >= LEAST_DOCUMENTS] or views
        rate = 0.0  # rows per token
        for share, view in views:
            sample = view.sample(SAMPLE_TOKENS // len(views))
            sample = sample if sample.num_documents >= LEAST_DOCUMENTS else view
            rate += share * len(self._plan(sample, None, 0)) / sample.num_tokens
        rows = rate / sum(share for share, _ in views) * split.num_tokens
        return round(float(f"{rows:.3g}"))  # significant digits only

    def get(self, number: int) -> PlannedWindow:
        """Return a window of the run by its number, planning it if necessary."""
        return self._cache.get(number, self._build)

    def plan_ahead(self, number: int) -> None:
        """Plan a window in the background."""
        self._cache.plan_ahead(number, self._build)

    def release(self) -> None:
        """Drop the plans; a window that is read later is planned again."""
        self._cache.clear()

    def locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Map row numbers of the run, int64 [n], to windows and row numbers within them, int64 [n] both."""
        if not self.several:
            return np.divmod(numbers, self.rows)
        ends = self._window_ends(int(numbers.max()))
        windows = np.searchsorted(ends, numbers, side="right")
        return windows, numbers - np.append(0, ends)[windows]

    def window_rows(self, number: int) -> int:
        """Number of rows that the run takes from a window."""
        return len(self.get(number)) if self.several else self.rows

    def _window_ends(self, last: int) -> np.ndarray:
        """End row (exclusive) of each window of the run up to the window that has row `last`: int64 [n]."""
        if self._counts.total <= last:
            with self._counting:
                while self._counts.total <= last:
                    self._counts.append(len(self.get(len(self._counts))))
        return self._counts.ends

    def _plan_inputs(self, window_tokens: int, lane: Lane) -> str:
        """All inputs of the plans except the text, as JSON."""
        inputs = {key: getattr(self._data, key) for key in _INPUTS} | {
            "version": _PLAN_VERSION,
            "seed": self._seed,
            "random_b": self._random_b,
            "separators": self._template.separators,
            "window": window_tokens,
            "lane": lane,
        }
        if self._data.active_sources:
            inputs["is_active"] = self._data.is_active
        return json.dumps(inputs, sort_keys=True)

    def _build(self, number: int, ahead: bool) -> PlannedWindow:
        """Plan a window. With `ahead`, also fetch and verify its tokens, which the first batches would do otherwise."""
        window = self._windows.get(number)
        text, reading = window.text, window.reading
        if reading is None and self._data.sampling == "groups":
            groups = self._split.groups
            assert groups is not None, "checked at the beginning"
            reading = one_of_each_group(groups, self._seed, number)
        if reading is not None or self.several:
            self._require_documents(len(np.unique(reading.document)) if reading else text.num_documents, number)
        planned = self._plan(text, reading, number)
        if not self.several:
            self._cache.capacity = max(2, SMALL_PLANS_ROWS // len(planned))
            return planned
        assert isinstance(text, SplitView)
        if ahead or text.is_copy:
            text.verify_tokens()
        if (expected := self._counts.get(number)) not in (None, len(planned)):
            raise ValueError(
                f"{self._counts.path}: window {number} has {len(planned):,} rows, not {expected:,}; delete the file"
            )
        return planned

    def _plan(self, text: TextView, reading: Reading | None, number: int) -> PlannedWindow:
        data = self._data
        plan = self._pairs(text, reading, number) if data.rows == "pairs" else self._sentences(text, reading, number)
        if data.packing == "none":
            return PlannedWindow(text, plan, None)
        key = derive_key(self._seed, "pack", number)
        packing = pack(self._lengths(text, plan), data.sequence_length, data.pairs_per_row, key)
        return PlannedWindow(text, plan, packing)

    def _pairs(self, text: TextView, reading: Reading | None, number: int) -> EpochPlan:
        return build_plan(
            text.document_offsets,
            text.sentence_offsets,
            max_tokens=self._data.sequence_length - self._template.pair_tokens,
            short_sequence_probability=self._data.short_sequence_probability,
            seed=self._seed,
            epoch=number,
            random_b=self._random_b,
            reading=reading,
            works=text.works,
        )

    def _sentences(self, text: TextView, reading: Reading | None, number: int) -> SentencePlan | TokenPlan:
        documents, sentences = text.document_offsets, text.sentence_offsets
        reading = reading or every_document(len(documents) - 1)
        room = self._data.sequence_length - self._template.text_tokens
        if build := BUILDERS.get(self._data.rows):
            return build(documents, sentences, reading, room=room, seed=self._seed, epoch=number)
        if self._data.rows == "documents":
            return build_document_plan(documents, sentences, reading, room=room)
        crossing = self._data.rows == "full_sentences"
        return build_sentence_plan(
            documents, sentences, reading, room=room, crossing=crossing, seed=self._seed, epoch=number
        )

    def _lengths(self, text: TextView, plan: EpochPlan | SentencePlan | TokenPlan) -> np.ndarray:
        """Length of each sequence of the plan in tokens, with special tokens: int64 [N]."""
        sentences, length = text.sentence_offsets, self._data.sequence_length
        if isinstance(plan, EpochPlan):
            return np.minimum(sum(plan.tokens(sentences)) + self._template.pair_tokens, length)
        if isinstance(plan, TokenPlan):
            room = length - self._template.text_tokens
            return slack_tokens(self._data.augment, plan.length, room) + self._template.text_tokens
        begin, end = plan.start, plan.start + plan.count.astype(plan.start.dtype)
        documents = text.document_offsets
        crossed = np.searchsorted(documents, end, side="left") - np.searchsorted(documents, begin, side="right")
        return np.minimum(sentences[end] - sentences[begin] + crossed + self._template.text_tokens, length)

    def _require_documents(self, documents: int, number: int) -> None:
        if documents < LEAST_DOCUMENTS:
            raise ValueError(
                f"data.weights={self._data.weights}, data.temperature={self._data.temperature}: window {number} of the "
                f"text has fewer than {LEAST_DOCUMENTS} documents, the minimum for sentence pairs; give more text or "
                "other shares, or divide long documents (data.split_documents)"
            )


_Build = Callable[[int, bool], PlannedWindow]


class PlanCache:
    """Cache of the few planned windows in use. Each is planned once, at its first use or earlier in the background.

    `build(number, ahead)` plans a window. The cache does not hold a reference to it, because a reference cycle would
    keep a window of a gigabyte in memory until the garbage collector runs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: OrderedDict[int, Future[PlannedWindow]] = OrderedDict()
        self.capacity = 2  # the current one and the next

    def get(self, number: int, build: _Build) -> PlannedWindow:
        """Return a window, waiting for its plan; raises the error that planning it raised."""
        plan, is_new = self._claim(number)
        if is_new:
            _fill(plan, number, False, build)
        return plan.result()

    def plan_ahead(self, number: int, build: _Build) -> None:
        """Plan a window in the background, unless it is planned or being planned."""
        plan, is_new = self._claim(number)
        if is_new:
            arguments = plan, number, True, build
            threading.Thread(target=_fill, args=arguments, name=f"plan-{number}", daemon=True).start()

    def clear(self) -> None:
        """Drop all plans."""
        with self._lock:
            self._plans.clear()

    def _claim(self, number: int) -> tuple[Future[PlannedWindow], bool]:
        with self._lock:
            is_new = number not in self._plans
            plan = self._plans.setdefault(number, Future())
            self._plans.move_to_end(number)
            while len(self._plans) > self.capacity:
                self._plans.popitem(last=False)
        return plan, is_new


def _fill(plan: Future[PlannedWindow], number: int, ahead: bool, build: _Build) -> None:
    try:
        plan.set_result(build(number, ahead))
    except BaseException as error:
        plan.set_exception(error)


class _Counts(TypedDict):
    inputs: str
    rows: list[Count]
    sha256: Sha256


class RowCounts:
    """Row counts of the run's windows planned so far, stored in `folder` unless that is None.

    `inputs` are the inputs of the plans. A damaged file is ignored with a warning.
    """

    def __init__(self, folder: Path | None, inputs: str) -> None:
        self.path = folder / f"rows-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}.json" if folder else None
        self._inputs = inputs
        self._rows = self._read(self.path) if self.path else []
        self.ends = np.array(list(accumulate(self._rows)), np.int64)  # one past the last row of each window

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def total(self) -> int:
        """Sum of the row counts."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def get(self, number: int) -> int | None:
        """The row count of a window, or None if it has not been planned yet."""
        return self._rows[number] if number < len(self._rows) else None

    def append(self, rows: int) -> None:
        """Add the next window. If the disk cannot be written, only a resumed run is slower: it plans again."""
        self._rows.append(rows)
        self.ends = np.append(self.ends, self.total + rows)
        if self.path is None:
            return
        digest = json_sha256([self._inputs, self._rows])
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self.path, json.dumps({"inputs": self._inputs, "rows": self._rows, "sha256": digest}))
        except OSError as error:
            warnings.warn(f"{self.path} could not be written ({error})", stacklevel=2)

    def _read(self, path: Path) -> list[int]:
        try:
            record: Any = read_json(path, _Counts)
            if record["inputs"] != self._inputs or record["sha256"] != json_sha256([self._inputs, record["rows"]]):
                raise ValueError(f"{path} is damaged or belongs to another run")
            return record["rows"]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            warnings.warn(f"{error}; windows are planned again", stacklevel=2)
            return []
