"""The source kind `tfrecord`: pretraining records of google-research/bert, whose rows and masks are used unchanged.

Each stage of a run reads the records of its row size, so a run may begin with short rows and end with long ones. Every
epoch reads each record once, except for a share that is held out by a hash of the record's content.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.evaluation_sets import evaluation_sets
from bertjax.input.layout import Vocabulary
from bertjax.input.masking.options import MASKING_OPTIONS
from bertjax.input.tfrecords.batches import RecordBatches, RecordView, require_recorded
from bertjax.input.tfrecords.record_files import RecordFile, open_record_files
from bertjax.input.tfrecords.rows import (
    RECORDED,
    RowShape,
    Segments,
    parse,
    record_shape,
    require_special_tokens,
    rows_from_features,
)
from bertjax.storage.progress import Progress
from bertjax.storage.remote import is_remote
from bertjax.text.corpus import Corpus
from bertjax.text.sources.registry import is_text, parse_sources
from bertjax.text.sources.tfrecord import KIND
from bertjax.text.store.manifest import SPLITS, SplitName, json_sha256
from bertjax.text.trained_vocabulary import load_vocabulary
from bertjax.tokenization.tokenizer import TextRules, Tokenizer

ORDER_VERSION = 1  # version of the order of rows; a change makes other runs
TEXT_RECORDS = 1 << 14  # held-out records of each size that `held_out_text` reads: a million tokens or more
_FIRST_RECORDS = 16  # records of each file that are checked before the run starts

_FIXED_BY_RECORDS = (  # fields of DataConfig that have no effect on records
    "entity_map",
    "weights",
    "temperature",
    "active_sources",
    "rows",
    "packing",
    "predict",
    "mask_probability",
    "keep_share",
    "random_share",
    "short_sequence_probability",
    *MASKING_OPTIONS,
)


def are_records(data: DataConfig) -> bool:
    """Whether some source is pretraining records; `Records.open` then requires that all are."""
    return not data.store and not all(map(is_text, parse_sources(data.sources)))


class Records:
    """The records of a run's sources, with the interface of `bertjax.input.training_data.TrainingData`."""

    def __init__(
        self,
        files: Sequence[tuple[RecordFile, RowShape]],
        tokenizer: Tokenizer,
        data: DataConfig,
        fingerprint: str,
        objectives: Sequence[str],
    ) -> None:
        self._files, self._data, self._objectives = tuple(files), data, tuple(objectives)
        self.location = ""
        self.name, self.notes = f"records {', '.join(data.sources)}", list[str]()
        self.tokenizer, self.fingerprint = tokenizer, fingerprint

    @classmethod
    def open(
        cls, stages: Sequence[DataConfig], progress: Progress, objectives: Sequence[str] = tuple(RECORDED)
    ) -> Records:
        """Find, check and index the records of a run's stages.

        Raises ValueError for sources that are not records, an objective that records do not support, a setting that
        contradicts the records' rows, a row size without a stage, a stage without records, a vocabulary other than
        `data.vocab`, and damaged files; OSError if the disk is full.
        """
        data = stages[0]
        _require_records_only(data)
        require_recorded(objectives)
        for key, path in (("data.root", data.root), *(("data.sources", source) for source in data.sources)):
            if is_remote(path):  # a batch needs random access
                raise ValueError(
                    f"{key}={path}: records must be on a local disk; copy them to one, or mount the bucket"
                )
        tokenizer = load_vocabulary(data.vocab, TextRules.of(data))
        sources = parse_sources(data.sources)
        corpus = Corpus.from_sources(sources, data)
        files = [(file, _first_shape(file, tokenizer)) for file in open_record_files(corpus, data, progress)]
        _require_sizes({file.name: shape for file, shape in files}, stages)
        order = [one.digest for group in corpus.hashed for one in group]
        records = cls(files, tokenizer, data, json_sha256({"records": order, "version": ORDER_VERSION}), objectives)
        for stage in stages:
            records._require_both_splits(RowShape.of(stage))
        return records

    def train(
        self, data: DataConfig, seed: int, objectives: Sequence[str] = (), global_batch_size: int = 1
    ) -> RecordBatches:
        """The rows of a stage."""
        view = self._view("train", RowShape.of(data))
        return RecordBatches(view, self.tokenizer, data, seed, objectives or self._objectives)

    def require_cached(self, data: DataConfig, global_batch_size: int, rows: np.ndarray) -> None:
        """Do nothing: records are read in place, without a cache."""

    def held_out(self, data: DataConfig, seed: int, objectives: Sequence[str] = ()) -> dict[str, RecordBatches]:
        """The held-out rows of a stage's size, and the rows of its non-empty `evaluation_sets`."""
        shape = RowShape.of(data)
        views = {"eval": self._view("held_out", shape)}
        sizes = [len(self._view("held_out", shape, (number,))) for number in range(len(data.sources))]
        sets = evaluation_sets(sizes)
        by_source = {name: self._view("held_out", shape, sources) for name, sources in sets.items()}
        views |= {name: view for name, view in by_source.items() if len(view)}
        objectives = objectives or self._objectives
        return {name: RecordBatches(view, self.tokenizer, data, seed, objectives) for name, view in views.items()}

    def held_out_text(self) -> Segments:
        """The segments of held-out records without masks, from at most `TEXT_RECORDS` records of each size."""
        parts: list[Segments] = []
        for shape in self._shapes:
            data = replace(self._data, sequence_length=shape.tokens, max_predictions=shape.predictions)
            batches = RecordBatches(self._view("held_out", shape), self.tokenizer, data, seed=0)
            parts += batches.texts(TEXT_RECORDS)
        return Segments(np.concatenate([p.ids for p in parts]), np.concatenate([p.lengths for p in parts]))

    def size(self, split: SplitName) -> str:
        """Describe the size of a split."""
        return "; ".join(f"{len(self._view(split, shape)):,} records of {shape}" for shape in self._shapes)

    @property
    def _shapes(self) -> list[RowShape]:
        return sorted({shape for _, shape in self._files})

    def _require_both_splits(self, shape: RowShape) -> None:
        train, held_out = (len(self._view(split, shape)) for split in SPLITS)
        if not train or not held_out:
            raise ValueError(
                f"data.held_out={self._data.held_out} leaves {held_out:,} of {train + held_out:,} records of {shape} "
                f"for evaluation and {train:,} for training; give another share, or more records"
            )

    def _view(self, split: SplitName, shape: RowShape, sources: Collection[int] | None = None) -> RecordView:
        """The records of a split and row size, from all sources or some."""
        chosen = range(len(self._data.sources)) if sources is None else sources
        files = tuple(file for file, size in self._files if size == shape and file.source in chosen)
        share, is_held = self._data.held_out, split == "held_out"
        return RecordView(files, tuple(np.flatnonzero(file.is_held_out(share) == is_held) for file in files))


def _require_records_only(data: DataConfig) -> None:
    text = [str(source) for source in parse_sources(data.sources) if is_text(source)]
    if text:
        raise ValueError(
            f"data.sources has {', '.join(text)} and {KIND.name} sources, which cannot be mixed; train on one of them, "
            "and then on the other with --init-from"
        )
    if not data.vocab:
        raise ValueError(
            f"data.vocab is empty; {KIND.name} sources have ids: give the vocab.txt that the records were made with"
        )
    defaults = DataConfig()
    for key in _FIXED_BY_RECORDS:
        if getattr(data, key) != getattr(defaults, key):
            raise ValueError(
                f"data.{key}={getattr(data, key)!r}: rows and masks of {KIND.name} sources were drawn when the records "
                f"were made; leave it at {getattr(defaults, key)!r}"
            )


def _first_shape(file: RecordFile, vocabulary: Vocabulary) -> RowShape:
    """The row size of a file, from its first records. Raises ValueError if they have another vocabulary."""
    first = file.read(np.arange(min(_FIRST_RECORDS, len(file))))

    def name(n: int) -> str:
        return f"{file.name}, record {n}"

    shape = record_shape(first[0], name(0))
    require_special_tokens(rows_from_features(parse(first, shape, name), vocabulary, name), vocabulary, name)
    return shape


def _require_sizes(shapes: Mapping[str, RowShape], stages: Sequence[DataConfig]) -> None:
    """Raise ValueError unless every file has the row size of a stage, and every stage has a file."""
    rooms = ["data", *(f"stages.{number}" for number in range(len(stages) - 1))]
    expected = [RowShape.of(data) for data in stages]
    keys = [
        f"{room}.sequence_length={shape.tokens}, {room}.max_predictions={shape.predictions}"
        for room, shape in zip(rooms, expected, strict=True)
    ]
    for path, shape in shapes.items():
        if shape not in expected:
            raise ValueError(
                f"{path}: its rows have {shape}, and the run has {'; '.join(keys)}; set these to the sizes of the "
                "records, or leave the file out of data.sources"
            )
    for key, shape in zip(keys, expected, strict=True):
        if shape not in shapes.values():
            raise ValueError(
                f"{key}: data.sources has no such records, only {', '.join(sorted(map(str, set(shapes.values()))))}; "
                "add some, or set these keys to a size in data.sources"
            )
