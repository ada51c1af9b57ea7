"""Training and evaluation data of a run: text in a token store, or records of finished rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches, batch_arrays
from bertjax.input.data_notes import masking_notes, pair_notes
from bertjax.input.epochs import LEAST_DOCUMENTS
from bertjax.input.evaluation_sets import evaluation_sets
from bertjax.input.feed import Batches
from bertjax.input.lanes import LaneBatches
from bertjax.input.layout import BERT, Template
from bertjax.input.masking.options import require_marked
from bertjax.input.sentence_rows import notes_on_cuts
from bertjax.input.targets import registry
from bertjax.input.tfrecords.records import Records, are_records
from bertjax.input.tfrecords.rows import Segments
from bertjax.input.windows import WHOLE_BATCH, WINDOW_TOKENS, Lane, lane_window
from bertjax.storage.progress import Progress
from bertjax.text.open_store import open_store, reopen_store
from bertjax.text.prepare import reading_notes
from bertjax.text.similar_words import digest
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.text.store.local_copy import require_cached_lanes
from bertjax.text.store.manifest import SPLITS, SplitName, describe_split
from bertjax.text.store_sources import require_store_sources
from bertjax.tokenization.tokenizer import Tokenizer

HELD_OUT_WINDOW_TOKENS = 1 << 26  # small, because an evaluation reads few rows


class RunBatches(Batches, Protocol):
    """The rows of a run, epoch after epoch."""

    @property
    def rows_per_epoch(self) -> int:
        """Rows in an epoch; an estimate if the text is large. May plan the first window."""
        ...

    @property
    def estimated_rows(self) -> int:
        """Estimated rows in an epoch. Does not plan a large text."""
        ...

    def release(self) -> None:
        """Drop all plans, as at the end of a stage; rows that are read later do not change."""
        ...

    @property
    def shares(self) -> np.ndarray | None:
        """Each source's share of an epoch's tokens, float64 [sources]; None if sources are not mixed."""
        ...


Sentences: TypeAlias = SplitView | Segments  # text without regard to its documents


class TrainingData(Protocol):
    """The data of a run."""

    name: str  # display name
    notes: list[str]  # lines for the user on how the text was read
    fingerprint: str  # identifies the training data: the store, and the digests of other files that rows depend on
    tokenizer: Tokenizer
    location: str  # the token store's, from which other hosts can open it; "" for records

    def train(
        self, data: DataConfig, seed: int, objectives: Sequence[str] = (), global_batch_size: int = 1
    ) -> RunBatches:
        """The rows of a stage for its objectives, by default the run's. Batches are divided into `data.lanes`."""
        ...

    def require_cached(self, data: DataConfig, global_batch_size: int, rows: np.ndarray) -> None:
        """Raise ValueError if `data.cache_gb` is too small for the text that a host reads for its `rows` of a batch."""
        ...

    def held_out(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> Mapping[str, RunBatches]:
        """The held-out rows of a stage as `eval`, and the rows of its `evaluation_sets`."""
        ...

    def held_out_text(self) -> Sentences:
        """The held-out text, or a sample if it is large."""
        ...

    def size(self, split: SplitName) -> str:
        """Describe the size of a split."""
        ...


class StoredText:
    """Text in a token store, whose rows get the arrays of `objectives`."""

    def __init__(
        self,
        store: TokenStore,
        objectives: Sequence[str] = registry.OF_BERT,
        template: Template = BERT,
        tables: Sequence[str] = (),
    ) -> None:
        """`tables` are the digests of the run's tables of similar words."""
        self.location = store.location
        self._store, self.tokenizer = store, store.tokenizer()
        self._objectives, self._template = tuple(objectives), template
        self.name = f"token store {store.name}"
        self.notes = reading_notes(store.manifest)
        self.fingerprint = "+".join((store.fingerprint, *tables))

    def train(
        self, data: DataConfig, seed: int, objectives: Sequence[str] = (), global_batch_size: int = 1
    ) -> RowBatches | LaneBatches:
        """The rows of a stage, with new pairs and masks in every epoch. Writes row counts next to the store."""
        folder = self._store.path.with_name(f"rows-{self._store.fingerprint[:12]}")
        split = self._store.split("train")

        def make(lane: Lane) -> RowBatches:
            return self._batches(split, data, seed, objectives, WINDOW_TOKENS, folder, lane)

        lanes = self._count_lanes(data, global_batch_size)
        return make(WHOLE_BATCH) if lanes == 1 else LaneBatches(make, lanes, global_batch_size)

    def require_cached(self, data: DataConfig, global_batch_size: int, rows: np.ndarray) -> None:
        """Like `TrainingData.require_cached`."""
        lanes = self._count_lanes(data, global_batch_size)
        host_lanes = len(np.unique(rows // (global_batch_size // lanes)))
        require_cached_lanes(self._store, data, host_lanes, lane_window(WINDOW_TOKENS, lanes))

    def _count_lanes(self, data: DataConfig, global_batch_size: int) -> int:
        is_large = self._store.split("train").num_tokens > WINDOW_TOKENS
        return gcd(data.lanes, global_batch_size) if is_large else 1

    def held_out(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> dict[str, RowBatches]:
        """Read each document once and unaltered, for any mixture; omits sets of less than two documents."""
        data = replace(data, weights=(), temperature=1.0, active_sources=(), augment=(), sampling="records")
        split = self._store.split("held_out")
        parts = {"eval": split}
        if split.has_sources:
            sets = evaluation_sets(split.source_tokens.tolist())
            views = {name: split.select_sources(*sources) for name, sources in sets.items()}
            parts |= {name: view for name, view in views.items() if view.num_documents >= LEAST_DOCUMENTS}
        return {
            name: self._batches(view, data, seed, objectives, HELD_OUT_WINDOW_TOKENS) for name, view in parts.items()
        }

    def _batches(
        self,
        split: SplitView,
        data: DataConfig,
        seed: int,
        objectives: Sequence[str],
        window_tokens: int,
        folder: Path | None = None,
        lane: Lane = WHOLE_BATCH,
    ) -> RowBatches:
        return RowBatches(
            split,
            self.tokenizer,
            data,
            seed,
            folder,
            objectives=objectives or self._objectives,
            template=self._template,
            window_tokens=window_tokens,
            lane=lane,
        )

    def held_out_text(self) -> Sentences:
        """The held-out split, or a sample of a large one."""
        return self._store.split("held_out").sample(HELD_OUT_WINDOW_TOKENS)

    def size(self, split: SplitName) -> str:
        """Describe a split's documents, sentences and tokens."""
        return describe_split(self._store.manifest, split)


def open_training_data(
    stages: Sequence[DataConfig],
    progress: Progress,
    objectives: Sequence[str] = registry.OF_BERT,
    template: Template = BERT,
    fingerprint: str = "",
) -> TrainingData:
    """Open the sources of a run. Prepares a missing token store of text, and copies a remote one.

    `stages` is the data config of each stage in order; `objectives` and `template` determine the arrays and the special
    tokens of their rows. Given the `fingerprint` of the data that a run was trained on, opens that run's store if it
    still exists, even if the sources have changed. Raises ValueError like `batch_arrays`, `require_marked`,
    `open_store`, `require_store_sources` and `Records.open`, OSError if the disk is full.
    """
    for stage in stages:
        batch_arrays(stage, objectives)  # refuse invalid configs before hours of preparing text
    if are_records(stages[0]):
        return Records.open(stages, progress, objectives)
    require_marked(stages)
    tables = [digest(path) for path in dict.fromkeys(stage.similar_words for stage in stages) if path]
    store = reopen_store(stages[0], store_fingerprint(fingerprint), progress) if fingerprint else None
    store = store or open_store(stages[0], progress)
    require_store_sources(store.manifest, stages)
    text = StoredText(store, objectives, template, tables)
    text.notes += notes_on_cuts(store.split("train"), stages, template)
    text.notes += pair_notes(store.manifest, stages, objectives)
    text.notes += masking_notes(store.split("train"), text.tokenizer, stages)
    return text


def store_fingerprint(fingerprint: str) -> str:
    """The store's part of a `TrainingData.fingerprint`, without the digests of other files."""
    return fingerprint.partition("+")[0]


def sizes(data: TrainingData) -> str:
    """The sizes of the splits, one line each."""
    return "\n".join(f"{split}: {data.size(split)}" for split in SPLITS)
