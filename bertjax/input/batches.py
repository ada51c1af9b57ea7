"""Batch k as a pure function of (data, seed, k): the rows of a run, from the plan's pairs to arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from bertjax.config import SHORTEST_ROW, DataConfig
from bertjax.input.masking import MaskRule, mask_tokens, next_tokens
from bertjax.input.mixture import Reading, mixed, token_shares
from bertjax.input.packing import Packing, pack, pack_rows
from bertjax.input.plan import EpochPlan, PlanCache, build_plan
from bertjax.input.randomness import derive_key, fold_in, hash64, permute

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
LEAST_DOCUMENTS = 2
SMALL_PLANS_ROWS = 2**20  # a batch of a tiny corpus may straddle many epochs: keep as many plans as this many rows fill


class Split(Protocol):
    """What is needed of a split of the token store (`bertjax.text.store.SplitView`)."""

    document_offsets: np.ndarray  # int64 [documents + 1], in sentences
    sentence_offsets: np.ndarray  # int64 [sentences + 1], in tokens

    @property
    def source_edges(self) -> np.ndarray:
        """int64 [sources + 1], in documents; asked for only if the sources are mixed."""
        ...

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of all these stretches, end to end."""
        ...


class Vocabulary(Protocol):
    """What is needed of a tokenizer (`bertjax.text.tokenizer.WordPiece`)."""

    vocab_size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray  # bool [vocab_size], tokens that start with ##


@dataclass(frozen=True)
class _Pairs:
    """The sentence pairs of some rows, before truncation."""

    row: np.ndarray  # int64 [N], ascending: which of the rows
    starts: np.ndarray  # int64 [N, 2]: first token of A and of B
    lengths: np.ndarray  # int64 [N, 2]: tokens
    is_random: np.ndarray  # bool [N]
    keys: np.ndarray  # uint64 [N]: all later draws depend on the pair's key alone, not on where the pair is put


_NO_PAIRS = _Pairs(*(np.zeros((0, 2)[:n], t) for n, t in ((1, int), (2, int), (2, int), (1, bool), (1, np.uint64))))


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


@dataclass(frozen=True)
class _Epoch:
    """The pairs of an epoch, and which of them share a row."""

    plan: EpochPlan
    packing: Packing | None  # None: each pair has a row of its own

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.plan if self.packing is None else self.packing)

    def pairs_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of some rows, and for each of them which of `rows` it belongs to; int64[N] both, in their order."""
        if self.packing is None:
            return np.arange(len(rows)), rows
        first = self.packing.offsets[rows]
        counts = self.packing.offsets[rows + 1] - first
        row = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        return row, self.packing.order[first[row] + place].astype(np.int64)


class PairBatches:
    """The rows of a run over one split, for masked language modelling and next sentence prediction.

    Row n of a run is place n mod R of epoch n // R, R = `rows_per_epoch` being the number of rows of the first epoch's
    plan; batch k of size B is rows k B to k B + B - 1. Packed, a row is several pairs, each with the tokens and masks
    that it would have alone. Safe to use from many threads.

    Raises ValueError if the split has fewer than two documents, the sequence length holds no pair, or the sources
    cannot be mixed as asked.
    """

    def __init__(self, split: Split, vocabulary: Vocabulary, data: DataConfig, seed: int) -> None:
        documents = len(split.document_offsets) - 1
        if documents < LEAST_DOCUMENTS:
            raise ValueError(
                f"the split has {documents} document(s); sentence pairs need at least {LEAST_DOCUMENTS}: add text to "
                f"data.sources, or, if this is the held-out split, raise data.held_out={data.held_out}"
            )
        if data.sequence_length < SHORTEST_ROW:
            raise ValueError(
                f"data.sequence_length={data.sequence_length} holds no sentence pair; use {SHORTEST_ROW} or more"
            )
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
        self.shares: np.ndarray | None = None  # of an epoch's tokens, float64 [sources]; None: every document once
        if data.is_mixture:
            edges = split.sentence_offsets[split.document_offsets[split.source_edges]]
            self.shares = token_shares(np.diff(edges).tolist(), data.weights, data.temperature)
        self._plans = PlanCache(self._build_plan)
        self.rows_per_epoch = len(self._plans.get(0))
        self._plans.capacity = max(self._plans.capacity, SMALL_PLANS_ROWS // self.rows_per_epoch)

    def batch(self, step: int, global_batch_size: int, rows: slice | np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Batch `step` of the run, or some of its rows: a slice or an int array of rows within the global batch.

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
        return self.rows(step * global_batch_size + within)

    def rows(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the run with these numbers, int64[B], as the arrays that `spec` describes."""
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
        """Each pair in a row of its own."""
        starts, lengths = truncate(pairs.starts, pairs.lengths, self._max_tokens, fold_in(pairs.keys, "truncate"))
        tokens = self._split.tokens(starts.ravel(), lengths.ravel())
        encoder, candidates = lay_out(tokens, lengths, self._data.sequence_length, self._vocabulary)
        if self._data.predict == "next":
            predictions = next_tokens(encoder["input_ids"], encoder["sequence_ids"])
        else:
            encoder["input_ids"], predictions = mask_tokens(
                encoder["input_ids"], candidates, pairs.keys, self._mask_rule
            )
        return encoder | predictions | label_pairs(pairs.is_random)

    @property
    def _max_tokens(self) -> int:
        return self._data.sequence_length - SPECIAL_TOKENS

    def _build_plan(self, epoch: int) -> _Epoch:
        sentences = self._split.sentence_offsets
        plan = build_plan(
            self._split.document_offsets,
            sentences,
            max_tokens=self._max_tokens,
            short_sequence_probability=self._data.short_sequence_probability,
            seed=self._seed,
            epoch=epoch,
            reading=None if self.shares is None else self._mixture(epoch),
        )
        if self._data.packing == "none":
            return _Epoch(plan, None)
        tokens = np.minimum(sum(plan.tokens(sentences)), self._max_tokens) + SPECIAL_TOKENS
        key = derive_key(self._seed, "pack", epoch)
        return _Epoch(plan, pack(tokens, self._data.sequence_length, self._data.pairs_per_row, key))

    def _mixture(self, epoch: int) -> Reading:
        split = self._split
        lengths = np.diff(split.sentence_offsets[split.document_offsets])
        reading = mixed(split.source_edges, lengths, self.shares, self._seed, epoch)
        if len(np.unique(reading.document)) < LEAST_DOCUMENTS:
            raise ValueError(
                f"data.weights={self._data.weights}, data.temperature={self._data.temperature}: epoch {epoch} has "
                f"fewer than {LEAST_DOCUMENTS} documents, which sentence pairs need; give more text or other shares"
            )
        return reading

    def _pairs(self, numbers: np.ndarray) -> _Pairs:
        """The pairs of these rows of the run, in their order."""
        epochs, places = np.divmod(numbers, self.rows_per_epoch)
        parts = [_NO_PAIRS]
        for epoch in np.unique(epochs).tolist():
            content = self._plans.get(epoch)
            rows = np.flatnonzero(epochs == epoch)
            if places[rows].max() > self.rows_per_epoch // 2:
                self._plans.prepare(epoch + 1)
            passes, places_in_pass = np.divmod(places[rows], len(content))
            for number in np.unique(passes).tolist():
                chosen = passes == number
                parts.append(self._pairs_of_pass(content, epoch, number, rows[chosen], places_in_pass[chosen]))
        joined = (np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Pairs))
        pairs = _Pairs(*joined)
        by_row = np.argsort(pairs.row, kind="stable")
        return _Pairs(*(getattr(pairs, f.name)[by_row] for f in fields(_Pairs)))

    def _pairs_of_pass(self, content: _Epoch, epoch: int, number: int, rows: np.ndarray, places: np.ndarray) -> _Pairs:
        """The pairs of some places in one pass over an epoch's rows, whose order and masks are the pass's own.

        There is more than one pass if this epoch's plan has fewer rows than the first one's.
        """
        planned = permute(places, len(content), derive_key(self._seed, "shuffle", epoch, number))
        row, pair = content.pairs_of(planned)
        plan, sentences = content.plan, self._split.sentence_offsets
        starts = np.stack([sentences[plan.a_start[pair]], sentences[plan.b_start[pair]]], axis=1).astype(np.int64)
        return _Pairs(
            row=rows[row],
            starts=starts,
            lengths=np.stack(plan.tokens(sentences, pair), axis=1).astype(np.int64),
            is_random=plan.is_random[pair],
            keys=hash64(derive_key(self._seed, "pair", epoch, number), pair),
        )


def truncate(
    starts: np.ndarray, lengths: np.ndarray, max_tokens: int, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cut pairs to `max_tokens` tokens, as if one by one from the longer segment (B if equal), from either end.

    Rule: truncate_seq_pair of google-research/bert. All arrays but `keys`, uint64[B], are int64[B, 2] for A and B.
    """
    half = np.array([max_tokens - max_tokens // 2, max_tokens // 2])
    kept = np.minimum(lengths, np.maximum(max_tokens - lengths[:, ::-1], half))
    return starts + _heads(lengths - kept, keys), kept


def _heads(tosses: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """How many of each number of fair coins show heads, int64[B, 2]: the ones among that many random bits."""
    number = tosses.ravel()
    words = -(-number // 64)
    owner = np.repeat(np.arange(len(number)), words)
    word = np.arange(len(owner)) - np.repeat(np.cumsum(words) - words, words)
    bits = hash64(hash64(keys[:, None], np.arange(2)).ravel()[owner], word)
    bits >>= (64 - np.minimum(number[owner] - 64 * word, 64)).astype(np.uint64)
    ones = np.bincount(owner, weights=np.bitwise_count(bits), minlength=len(number))
    return ones.astype(np.int64).reshape(tosses.shape)


def lay_out(
    tokens: np.ndarray, lengths: np.ndarray, length: int, vocabulary: Vocabulary
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Put `[CLS] A [SEP] B [SEP]` and padding in rows: the arrays that every encoder reads.

    `tokens` are the ids of the first row's A, its B, the second row's A, ...; `lengths` int64[B, 2].
    Returns input_ids, token_type_ids, sequence_ids, int32[B, L], and where A and B are, bool[B, L].
    """
    column = np.arange(length, dtype=np.int32)
    first_sep = (lengths[:, :1] + 1).astype(np.int32)
    last_sep = (lengths.sum(axis=1, keepdims=True) + 2).astype(np.int32)
    is_inside = column <= last_sep
    is_second = (column > first_sep) & is_inside
    is_text = (column < last_sep) & (column != first_sep)
    is_text[:, 0] = False
    input_ids = np.full(is_inside.shape, vocabulary.pad_id, np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    rows = np.arange(len(lengths))[:, None]
    input_ids[rows, first_sep] = vocabulary.sep_id
    input_ids[rows, last_sep] = vocabulary.sep_id
    input_ids[is_text] = tokens
    encoder = {
        "input_ids": input_ids,
        "token_type_ids": is_second.astype(np.int32),
        "sequence_ids": is_inside.astype(np.int32),
    }
    return encoder, is_text


def label_pairs(is_random: np.ndarray) -> dict[str, np.ndarray]:
    """The next-sentence objective's part of a batch: 0 where B follows A, 1 where it is random; `is_random` bool[B]."""
    labels = is_random[:, None].astype(np.int32)
    return {
        "cls_positions": np.zeros_like(labels),
        "pair_labels": labels,
        "pair_weights": np.ones(labels.shape, np.float32),
    }
