"""Make batch k as a pure function of (data, seed, k), from the pairs in an epoch's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from bertjax.config import DataConfig
from bertjax.input import record_rows
from bertjax.input.augmentations import registry as augmentations
from bertjax.input.epochs import Epochs, PlannedWindow
from bertjax.input.layout import (
    BERT,
    Template,
    TextView,
    Vocabulary,
    encoder_arrays,
    lay_out_pairs,
    lay_out_ranges,
    lay_out_sentences,
)
from bertjax.input.packing import BatchArray, pack_rows, pad_table, range_widths, table_widths
from bertjax.input.randomness import derive_key, fold_in, hash64, permute
from bertjax.input.targets import registry
from bertjax.input.targets.target import Make, Sequences, Target, make_declared
from bertjax.input.windows import WHOLE_BATCH, WINDOW_TOKENS, Lane
from bertjax.text.ragged import grouped
from bertjax.tokenization.tokenizer import Tokenizer

Spec = dict[str, tuple[tuple[int, ...], type[np.generic]]]


@dataclass(frozen=True)
class Pairs:
    """The sentence pairs of some rows, before truncation (k = 2), or their running text (k = 1).

    For records (`record_rows`), `first` and `count` are in tokens, not sentences.
    """

    row: np.ndarray  # int64 [N], ascending: the row's index among them
    first: np.ndarray  # int64 [N, k]: first sentence of A and of B
    count: np.ndarray  # int64 [N, k]: sentences
    labels: np.ndarray  # bool [N]: B does not follow A
    keys: np.ndarray  # uint64 [N]: all later draws depend on the pair's key alone, not on its row

    def at(self, chosen: np.ndarray) -> Pairs:
        """Select pairs by index, int64 [n]."""
        return Pairs(*(array[chosen] for array in self.arrays()))

    def arrays(self) -> tuple[np.ndarray, ...]:
        """The fields in order."""
        return self.row, self.first, self.count, self.labels, self.keys


def batch_arrays(data: DataConfig, objectives: Sequence[str], pad_id: int = 0) -> dict[str, BatchArray]:
    """The arrays of a batch: the encoder's inputs, and the arrays that each objective adds.

    Raises ValueError for unknown objectives and augmentations, and for rows that an objective does not support.
    """
    if data.augment:
        augmentations.choose(data.augment)
    arrays = encoder_arrays(data.sequence_length, pad_id)
    added = {name: target.keys(data) for name, target in registry.choose(objectives).items()}
    for name, own in added.items():
        if duplicates := sorted(arrays.keys() & own.keys()):
            raise ValueError(
                f"training.objectives={tuple(objectives)}: {name} adds {', '.join(duplicates)}, which another "
                "objective adds too; leave one of them out, or rename the array in its target"
            )
        arrays |= own
    for name, own in added.items():
        for array in own.values():
            if array.used and array.used not in arrays:
                raise ValueError(
                    f"training.objectives={tuple(objectives)}: {name} needs the predictions of "
                    f"{array.used.partition('_')[0]}; add that objective"
                )
    return arrays


def batch_spec(data: DataConfig, batch_size: int, objectives: Sequence[str] = registry.OF_BERT) -> Spec:
    """Shape and dtype of every array of a batch, in order; needs no text. Raises like `batch_arrays`."""
    return {name: ((batch_size, array.width), array.dtype) for name, array in batch_arrays(data, objectives).items()}


def rows_of_batch(step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> np.ndarray:
    """The run's row numbers, int64, of a batch's rows: all of them, or those in `rows`, a slice or int array.

    Raises ValueError for a negative step, an empty batch, or a row outside the batch.
    """
    if step < 0 or global_batch_size < 1:
        raise ValueError(f"step={step} must be at least 0, and global_batch_size={global_batch_size} at least 1")
    within = np.arange(global_batch_size)
    if isinstance(rows, slice):
        within = within[rows]
    elif rows is not None:
        within = np.asarray(rows, np.int64)
        if len(within) and not 0 <= within.min() <= within.max() < global_batch_size:
            raise ValueError(f"rows={rows} are outside the global batch of {global_batch_size} rows")
    return step * global_batch_size + within


def merge_rows(groups: Sequence[tuple[np.ndarray, dict[str, np.ndarray]]], spec: Spec) -> dict[str, np.ndarray]:
    """Merge groups of rows into a batch. Each group is (its rows' indices in the batch, int64 [n]; its arrays)."""
    if len(groups) == 1:
        return groups[0][1]
    whole = {key: np.empty(shape, dtype) for key, (shape, dtype) in spec.items()}
    for rows, arrays in groups:
        for key, values in arrays.items():
            whole[key][rows] = values
    return whole


def _make_makers(targets: Mapping[str, Target], data: DataConfig, vocabulary: Vocabulary, text: TextView) -> list[Make]:
    return [
        partial(make_declared, name, target.keys(data), target.prepare(data, vocabulary, text))
        for name, target in targets.items()
    ]


class RowBatches:
    """The rows of a run over one split, with the arrays of its objectives. Thread-safe.

    Row n of a run is row n mod R of epoch n // R, where R = `rows_per_epoch` is the number of rows in the first
    epoch's plan. If the text has several windows, it is row n of all windows in order. Batch k of size B is rows k B to
    k B + B - 1. A packed row holds several pairs, each with the tokens and masks that it would have alone. Planning
    starts when the first row is made.

    `folder`, `window_tokens` and `lane` as in `Epochs`; `template` is the layout of special tokens. Raises ValueError
    like `Epochs` and `batch_arrays`, and for an unsuitable vocabulary or split.
    """

    def __init__(
        self,
        split: TextView,
        vocabulary: Vocabulary,
        data: DataConfig,
        seed: int,
        folder: Path | None = None,
        *,
        objectives: Sequence[str] = registry.OF_BERT,
        template: Template = BERT,
        window_tokens: int = WINDOW_TOKENS,
        lane: Lane = WHOLE_BATCH,
    ) -> None:
        self.split = split
        self._vocabulary = vocabulary
        self._data = data
        self._seed = seed
        self._template = template
        self._declared = batch_arrays(data, objectives, vocabulary.pad_id)
        chosen = registry.choose(objectives)
        targets = {name: chosen[name] for name in registry.TARGETS if name in chosen}  # one may read another's arrays
        make_makers = partial(_make_makers, targets, data, vocabulary)  # not a method: that would be a reference cycle
        self._makers = make_makers(split)
        self._window_makers = lru_cache(maxsize=2)(make_makers)  # as many as there are plans
        self._augment = None
        if data.augment and isinstance(vocabulary, Tokenizer):  # made-up text for plans and benchmarks has no spelling
            self._augment = augmentations.prepare(data.augment, vocabulary)
        self._pairing = registry.choose_pairing(objectives)
        self._epochs = Epochs(
            split,
            data,
            seed,
            folder,
            random_b=self._pairing.random_b,
            template=template,
            window_tokens=window_tokens,
            lane=lane,
        )
        self.shares = self._epochs.shares

    @property
    def rows_per_epoch(self) -> int:
        """Rows in an epoch; an estimate if the text has several windows. Plans the first window."""
        return self._epochs.rows

    @property
    def estimated_rows(self) -> int:
        """Estimated rows in an epoch. Does not plan a large text."""
        return self._epochs.estimated_rows

    def release(self) -> None:
        """Drop all plans, as at the end of a stage."""
        self._epochs.release()
        self._window_makers.cache_clear()

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its `rows`. Arguments and errors as in `rows_of_batch`."""
        return self.rows(rows_of_batch(step, global_batch_size, rows))

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """Make the run's rows with these numbers, int64 [B], as the arrays that `spec` describes."""
        if not len(numbers):
            return {key: np.zeros(shape, dtype) for key, (shape, dtype) in self.spec(0).items()}
        groups = [(rows, self._make_rows(text, pairs, len(rows))) for rows, text, pairs in self._texts(numbers)]
        return merge_rows(groups, self.spec(len(numbers)))

    def texts(self, numbers: np.ndarray) -> list[tuple[np.ndarray, TextView, Pairs]]:
        """Group the run's rows with these numbers by their text.

        Returns for each text: the indices into `numbers`, int64 [n]; the text; and the pairs of these n rows in it, as
        sentences even for records.
        """
        texts = self._texts(numbers)
        if self._data.rows in record_rows.BUILDERS:  # ranges of tokens
            for n, (rows, text, pairs) in enumerate(texts):
                first, count = record_rows.sentences_of_tokens(text.sentence_offsets, pairs.first, pairs.count)
                texts[n] = rows, text, replace(pairs, first=first, count=count)
        return texts

    def _texts(self, numbers: np.ndarray) -> list[tuple[np.ndarray, TextView, Pairs]]:
        numbers = np.asarray(numbers, np.int64)
        if not self._epochs.several:
            return [(np.arange(len(numbers)), self.split, self.pairs(numbers))]
        windows, _ = self._epochs.locate(numbers)
        return [(rows, self._epochs.get(window).text, self.pairs(numbers[rows])) for window, rows in grouped(windows)]

    def _make_rows(self, text: TextView, pairs: Pairs, rows: int) -> dict[str, np.ndarray]:
        """The arrays of `rows` rows from one text."""
        if self._data.packing == "none":
            single = self._single_rows(text, pairs, self._data.sequence_length)
            return {name: pad_table(single[name], array) for name, array in self._declared.items()}
        if self._data.rows in record_rows.BUILDERS:
            widths = range_widths(self._room(pairs.count[:, 0]), self._data.sequence_length)
        else:
            widths = table_widths(text.sentence_offsets, pairs.first, pairs.count, self._data.sequence_length)
        parts = [(some, self._single_rows(text, pairs.at(some), width)) for width, some in grouped(widths)]
        return pack_rows(parts, self._declared, pairs.row, rows)

    def spec(self, batch_size: int) -> Spec:
        """Shape and dtype of every array of a batch, in order."""
        return {name: ((batch_size, array.width), array.dtype) for name, array in self._declared.items()}

    def _single_rows(self, text: TextView, pairs: Pairs, width: int) -> dict[str, np.ndarray]:
        """Lay out each pair, or each sequence of sentences, in its own row of `width` tokens."""
        vocabulary, template = self._vocabulary, self._template
        if self._data.rows == "pairs":
            encoder, ranges = lay_out_pairs(text, pairs.first, pairs.count, pairs.keys, width, vocabulary, template)
        elif self._data.rows in record_rows.BUILDERS:
            first, count = pairs.first[:, 0], pairs.count[:, 0]
            change = None
            if self._augment is not None:
                change = partial(self._augment, pairs.keys, self._room(count))
            encoder, ranges = lay_out_ranges(text, first, count, width, vocabulary, change)
        else:
            first, count = pairs.first[:, 0], pairs.count[:, 0]
            encoder, ranges = lay_out_sentences(text, first, count, width, vocabulary, template)
        arrays = dict(encoder)
        sequences = Sequences(encoder, ranges, pairs.keys, pairs.labels, arrays)
        for make in self._makers if text is self.split else self._window_makers(text):
            arrays |= make(sequences)
        return {name: arrays[name] for name in self._declared}

    def _room(self, tokens: np.ndarray) -> np.ndarray:
        """The most tokens that ranges of these lengths may have after augmentation, int64 [N]."""
        return augmentations.slack_tokens(
            self._data.augment, tokens, self._data.sequence_length - self._template.text_tokens
        )

    def pairs(self, numbers: np.ndarray) -> Pairs:
        """The pairs of these rows of the run, in order; their sentences are numbered within the row's window."""
        windows, within = self._epochs.locate(numbers)
        parts = []
        for window, rows in grouped(windows):
            content = self._epochs.get(window)
            if within[rows].max() > self._epochs.window_rows(window) // 2:
                self._epochs.plan_ahead(window + 1)
            rounds, within_round = np.divmod(within[rows], len(content))
            for number, chosen in grouped(rounds):
                parts.append(self._round_pairs(content, window, number, rows[chosen], within_round[chosen]))
        if len(parts) == 1:
            return parts[0]
        pairs = Pairs(*map(np.concatenate, zip(*(part.arrays() for part in parts), strict=True)))
        return pairs.at(np.argsort(pairs.row, kind="stable"))

    def _round_pairs(
        self, content: PlannedWindow, window: int, number: int, rows: np.ndarray, within: np.ndarray
    ) -> Pairs:
        """The pairs of some rows in one round over a window's rows; each round has its own order and masks.

        A second round is needed if an epoch's plan has fewer rows than the first epoch's.
        """
        shuffled = permute(within, len(content), derive_key(self._seed, "shuffle", window, number))
        row, pair = content.pairs(shuffled)
        keys = hash64(derive_key(self._seed, "pair", window, number), pair)
        first, count, labels = content.plan.spans(pair)
        if self._pairing.exchanges:
            exchanged = ~labels & (fold_in(keys, "exchange") >> 63 == 1)
            first[exchanged], count[exchanged] = first[exchanged, ::-1], count[exchanged, ::-1]
            labels = labels | exchanged
        return Pairs(rows[row], first, count, labels, keys)
