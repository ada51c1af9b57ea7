"""The data of a run, for training and evaluation: text in a token store, or records that are rows already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import PairBatches, batch_keys
from bertjax.input.data_notes import masking_notes, pair_notes
from bertjax.input.epochs import LEAST_DOCUMENTS
from bertjax.input.feed import Batches
from bertjax.input.layout import BERT, Template
from bertjax.input.masking.options import require_marked
from bertjax.input.sentence_rows import notes_on_cuts
from bertjax.input.targets import registry
from bertjax.input.tfrecords.records import Records, are_records
from bertjax.input.tfrecords.rows import Segments
from bertjax.storage.progress import Progress
from bertjax.text.prepare import reading_notes
from bertjax.text.similar_words import digest
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.text.store.local_copy import open_store, reopen_store
from bertjax.text.store.manifest import SPLITS, Split, describe_split
from bertjax.tokenization.tokenizer import Tokenizer


class RunBatches(Batches, Protocol):
    """The rows of a run, epoch after epoch."""

    @property
    def rows_per_epoch(self) -> int:
        """The number of rows in an epoch."""
        ...

    @property
    def shares(self) -> np.ndarray | None:
        """Shares of an epoch's tokens, float64 [sources], where the sources are mixed."""
        ...


Sentences: TypeAlias = SplitView | Segments  # text without regard to its documents


class TrainingData(Protocol):
    """The data of a run."""

    name: str  # shown to the user
    notes: list[str]  # on how the text was read, likewise
    fingerprint: str  # of the training data: the store's for text, and the digests of further files that rows need
    tokenizer: Tokenizer  # whose ids the rows hold

    def train(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> RunBatches:
        """The rows of a stage, for its objectives; without any, for all of the run."""
        ...

    def held_out(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> Mapping[str, RunBatches]:
        """The held-out rows of a stage as `eval`, and those of source n by itself as `eval/source_<n>`."""
        ...

    def held_out_text(self) -> Sentences:
        """The held-out text, or a part of it where there is much."""
        ...

    def size(self, split: Split) -> str:
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
        """`tables` are the digests of the tables of similar words that rows are made with, if there are any."""
        self._store, self.tokenizer = store, store.tokenizer()
        self._objectives, self._template = tuple(objectives), template
        self.name = f"token store {store.path}"
        self.notes = reading_notes(store.manifest)
        self.fingerprint = "+".join((store.fingerprint, *tables))

    def train(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> PairBatches:
        """New pairs and masks in every epoch; plans that take long to build are stored next to the store."""
        plans = self._store.path.with_name(f"plans-{self._store.fingerprint[:12]}")
        return self._batches(self._store.split("train"), data, seed, objectives, plans)

    def held_out(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> dict[str, PairBatches]:
        """Every document once, as it is written, whatever the mixture; a source of under two is not measured alone."""
        data = replace(data, weights=(), temperature=1.0, active_sources=(), augment=(), sampling="records")
        split = self._store.split("held_out")
        parts = {"eval": split}
        if len(data.sources) > 1 and split.has_sources:
            views = {f"eval/source_{number}": split.select_source(number) for number in range(split.num_sources)}
            parts |= {name: view for name, view in views.items() if view.num_documents >= LEAST_DOCUMENTS}
        return {name: self._batches(view, data, seed, objectives) for name, view in parts.items()}

    def _batches(
        self, split: SplitView, data: DataConfig, seed: int, objectives: Sequence[str], plans: Path | None = None
    ) -> PairBatches:
        objectives = objectives or self._objectives
        return PairBatches(split, self.tokenizer, data, seed, plans, objectives=objectives, template=self._template)

    def held_out_text(self) -> Sentences:
        """The whole held-out split."""
        return self._store.split("held_out")

    def size(self, split: Split) -> str:
        """Documents, sentences, tokens."""
        return describe_split(self._store.manifest, split)


def open_training_data(
    stages: Sequence[DataConfig],
    progress: Progress,
    objectives: Sequence[str] = registry.OF_BERT,
    template: Template = BERT,
    fingerprint: str = "",
) -> TrainingData:
    """Open the sources of a run; a token store of text is made if it is missing, and copied if it is remote.

    `stages` are the data of the run's stages in order; their rows get the arrays of `objectives`, and their special
    tokens where `template` says. With the `fingerprint` of the data that a run was trained on, that run's store is
    opened if it is still there, whatever the sources hold now. Raises ValueError as `batch_keys`, `require_marked`,
    `open_store` and `Records.open` do, OSError if the disk is full.
    """
    for stage in stages:
        batch_keys(stage, objectives)  # what cannot be is refused before hours of preparing text
    if are_records(stages[0]):
        return Records.open(stages, progress, objectives)
    require_marked(stages)
    tables = [digest(path) for path in dict.fromkeys(stage.similar_words for stage in stages) if path]
    store = reopen_store(stages[0], store_fingerprint(fingerprint), progress) if fingerprint else None
    store = store or open_store(stages[0], progress)
    text = StoredText(store, objectives, template, tables)
    text.notes += notes_on_cuts(store.split("train"), stages, template)
    text.notes += pair_notes(store.manifest, stages, objectives)
    text.notes += masking_notes(store.split("train"), text.tokenizer, stages)
    return text


def store_fingerprint(fingerprint: str) -> str:
    """The store's part of a `TrainingData.fingerprint`, without the digests of further files."""
    return fingerprint.partition("+")[0]


def sizes(data: TrainingData) -> str:
    """The sizes of the splits, one line each."""
    return "\n".join(f"{split}: {data.size(split)}" for split in SPLITS)
