"""Batch k as a pure function of (data, seed, k): the rows of a run, from the plan's pairs to arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.epochs import Epoch, Epochs
from bertjax.input.masking import MaskRule, mask_tokens, next_tokens
from bertjax.input.packing import pack_rows
from bertjax.input.pair_rows import Split, Vocabulary, label_pairs, lay_out_pairs
from bertjax.input.randomness import derive_key, hash64, permute
from bertjax.input.sentence_rows import lay_out_sentences


@dataclass(frozen=True)
class _Pairs:
    """The sentence pairs of some rows, before truncation, or their stretches of running text (k = 1)."""

    row: np.ndarray  # int64 [N], ascending: which of the rows
    first: np.ndarray  # int64 [N, k]: first sentence of A and of B
    count: np.ndarray  # int64 [N, k]: sentences
    is_random: np.ndarray  # bool [N]
    keys: np.ndarray  # uint64 [N]: all later draws depend on the pair's key alone, not on where the pair is put


def batch_spec(data: DataConfig, batch_size: int) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Shape and dtype of every array of a batch, in order of the keys; known before any text is."""
    of_tokens = (batch_size, data.sequence_length)
    of_predictions = (batch_size, data.prediction_slots)
    of_pairs = (batch_size, data.pair_slots)
    return {
        "input_ids": (of_tokens, np.int32),
        "token_type_ids": (of_tokens, np.int32),
        "sequence_ids": (of_tokens, np.int32),
        "mlm_positions": (of_predictions, np.int32),
        "mlm_labels": (of_predictions, np.int32),
        "mlm_weights": (of_predictions, np.float32),
        "cls_positions": (of_pairs, np.int32),
        "pair_labels": (of_pairs, np.int32),
        "pair_weights": (of_pairs, np.float32),
    }


def rows_of_batch(step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> np.ndarray:
    """The numbers within the run, int64, of all rows of a batch, or of some: a slice or an int array of rows within it.

    Raises ValueError for a negative step, an empty batch, or a row outside the batch.
    """
    if step < 0 or global_batch_size < 1:
        raise ValueError(f"step={step} must not be negative, global_batch_size={global_batch_size} not below 1")
    within = np.arange(global_batch_size)
    if isinstance(rows, slice):
        within = within[rows]
    elif rows is not None:
        within = np.asarray(rows, np.int64)
        if len(within) and not 0 <= within.min() <= within.max() < global_batch_size:
            raise ValueError(f"rows={rows} reach outside the global batch of {global_batch_size} rows")
    return step * global_batch_size + within


class PairBatches:
    """The rows of a run over one split, for masked language modelling and next sentence prediction.

    Row n of a run is place n mod R of epoch n // R, R = `rows_per_epoch` being the number of rows of the first epoch's
    plan; batch k of size B is rows k B to k B + B - 1. Packed, a row is several pairs, each with the tokens and masks
    that it would have alone. Safe to use from many threads.

    `plans` is a folder for plans that take long to build, as `Epochs` has it; raises ValueError as it does.
    """

    def __init__(
        self, split: Split, vocabulary: Vocabulary, data: DataConfig, seed: int, plans: Path | None = None
    ) -> None:
        self._split = split
        self._vocabulary = vocabulary
        self._data = data
        self._seed = seed
        self._mask_rule = MaskRule(
            probability=data.mask_probability,
            max_predictions=data.max_predictions,
            mask_id=vocabulary.mask_id,
            vocab_size=vocabulary.vocab_size,
            keep_share=data.keep_share,
            random_share=data.random_share,
            is_continuation=np.asarray(vocabulary.is_continuation) if data.whole_word_masking else None,
        )
        self._epochs = Epochs(split, data, seed, plans)
        self.rows_per_epoch = self._epochs.rows
        self.shares = self._epochs.shares  # of an epoch's tokens, float64 [sources]; None: every document once

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its rows: a slice or an int array of rows within the global batch.

        Raises ValueError as `rows_of_batch` does.
        """
        return self.rows(rows_of_batch(step, global_batch_size, rows))

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the run with these numbers, int64[B], as the arrays that `spec` describes."""
        if not len(numbers):
            return {key: np.zeros(shape, dtype) for key, (shape, dtype) in self.spec(0).items()}
        pairs = self._pairs(np.asarray(numbers, np.int64))
        single = self._single_rows(pairs)
        if self._data.packing == "none":
            return single
        slots = self._data.prediction_slots, self._data.pair_slots
        return pack_rows(single, pairs.row, len(numbers), *slots, self._vocabulary.pad_id)

    def spec(self, batch_size: int) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
        """Shape and dtype of every array of a batch of that many rows, in order of the keys."""
        return batch_spec(self._data, batch_size)

    def _single_rows(self, pairs: _Pairs) -> dict[str, np.ndarray]:
        """Each pair, or each stretch of running text, in a row of its own."""
        split, length, vocabulary = self._split, self._data.sequence_length, self._vocabulary
        if self._data.rows == "pairs":
            encoder, text = lay_out_pairs(split, pairs.first, pairs.count, pairs.keys, length, vocabulary)
        else:
            first, count = pairs.first[:, 0], pairs.count[:, 0]
            encoder, text = lay_out_sentences(split, first, count, length, vocabulary)
        if self._data.predict == "next":
            predictions = next_tokens(encoder["input_ids"], encoder["sequence_ids"])
        else:
            special = encoder["sequence_ids"].sum(axis=1) - text.places.sum(axis=1)
            segmented = self._data.whole_word_masking and split.tells_words
            continues = split.continues(text.starts, text.lengths) if segmented else None
            encoder["input_ids"], predictions = mask_tokens(
                encoder["input_ids"], text.places, pairs.keys, self._mask_rule, special, continues
            )
        return encoder | predictions | label_pairs(pairs.is_random, weight=float(self._data.rows == "pairs"))

    def _pairs(self, numbers: np.ndarray) -> _Pairs:
        """The pairs of these rows of the run, in their order."""
        epochs, places = np.divmod(numbers, self.rows_per_epoch)
        parts = []
        for epoch in np.unique(epochs).tolist():
            content = self._epochs.get(epoch)
            rows = np.flatnonzero(epochs == epoch)
            if places[rows].max() > self.rows_per_epoch // 2:
                self._epochs.prepare(epoch + 1)
            passes, places_in_pass = np.divmod(places[rows], len(content))
            for number in np.unique(passes).tolist():
                chosen = passes == number
                parts.append(self._pairs_of_pass(content, epoch, number, rows[chosen], places_in_pass[chosen]))
        if len(parts) == 1:
            return parts[0]
        pairs = _Pairs(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Pairs)))
        by_row = np.argsort(pairs.row, kind="stable")
        return _Pairs(*(getattr(pairs, f.name)[by_row] for f in fields(_Pairs)))

    def _pairs_of_pass(self, content: Epoch, epoch: int, number: int, rows: np.ndarray, places: np.ndarray) -> _Pairs:
        """The pairs of some places in one pass over an epoch's rows, whose order and masks are the pass's own.

        There is more than one pass if this epoch's plan has fewer rows than the first one's.
        """
        planned = permute(places, len(content), derive_key(self._seed, "shuffle", epoch, number))
        row, pair = content.pairs_of(planned)
        keys = hash64(derive_key(self._seed, "pair", epoch, number), pair)
        return _Pairs(rows[row], *content.plan.spans(pair), keys)
