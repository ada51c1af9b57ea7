"""The masking rule of a config (unit, count and replacement), applied to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Vocabulary
from bertjax.input.masking.counts import COUNTS, Count, RoomOfUnits
from bertjax.input.masking.options import RANDOM_IDS, REPLACED_BY, Draw, check_masking, room_of_units
from bertjax.input.masking.similar import ReplacedBySimilar, SimilarTable
from bertjax.input.masking.units import UNITS, Unit
from bertjax.input.randomness import fold_in, hash64, low_uniform, uniform
from bertjax.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertjax.input.tfrecords.rows import Segments

_SENTENCES_AT_A_TIME = 1 << 17


@dataclass(frozen=True)
class Replacement:
    """Replaces masked tokens; by default [MASK] in 80 %, a random token and itself in 10 % (BERT, 3.1)."""

    mask_id: int
    random_id: Draw
    keep_share: float = 0.1
    random_share: float = 0.1  # the rest is shown as [MASK]
    drawn_at: Callable[[np.ndarray], np.ndarray] = lambda positions: positions  # see `REPLACED_BY`
    needs_words: bool = False

    def shown(
        self,
        labels: np.ndarray,
        positions: np.ndarray,
        is_used: np.ndarray,
        keys: np.ndarray,
        continues: np.ndarray | None = None,
    ) -> np.ndarray:
        """Ids shown at `positions` int64 [B, P], ascending where `is_used`, for `labels` int32 [B, P]: int32 [B, P].

        All draws depend on `keys`, uint64 [B], and the positions alone. `continues` is for a replacement that
        `needs_words`.
        """
        keys = fold_in(keys, "replacement")[:, None]
        bits = hash64(keys, positions)
        drawn_at = self.drawn_at(positions)
        kind = low_uniform(bits if drawn_at is positions else hash64(keys, drawn_at))
        shown = np.where(kind < self.keep_share, labels, np.int32(self.mask_id))
        is_random = (kind >= self.keep_share) & (kind < self.keep_share + self.random_share) & is_used
        shown[is_random] = self.random_id(bits[is_random])
        return shown


@dataclass(frozen=True)
class MaskRule:
    """The number of masked tokens in a sequence, their choice, and their replacement."""

    probability: float  # share of a sequence's tokens, [CLS] and [SEP] counted
    max_predictions: int  # P
    replacement: Replacement | ReplacedBySimilar
    unit: Unit
    count: Count
    is_continuation: np.ndarray | None = None  # bool [vocab_size], tokens that continue a word
    room: RoomOfUnits | None = None  # for a unit with a share
    weights: np.ndarray | None = None  # float64 [vocab_size], in proportion to which single tokens are drawn

    @classmethod
    def of(cls, data: DataConfig, vocabulary: Vocabulary, split: Split) -> MaskRule:
        """The rule of a config.

        Raises ValueError as `check_masking` does, and if the unit needs a plane that the token store does not have.
        """
        check_masking(data)
        unit = UNITS[data.masking].make(data)
        if unit.needs_plane and not split.has_plane(unit.plane):
            raise ValueError(
                f"data.masking={data.masking!r}: the token store marks no units of this kind; prepare it with "
                "data.units that has them (data.segmenter for units), or set another data.masking"
            )
        return cls(
            data.mask_probability,
            data.max_predictions,
            _replacement(data, vocabulary, split),
            unit,
            COUNTS[data.mask_count],
            np.asarray(vocabulary.is_continuation) if unit.needs_words else None,
            room_of_units(data, unit),
            token_weights(split, vocabulary.vocab_size, data.mask_power) if data.mask_power else None,
        )


def _replacement(data: DataConfig, vocabulary: Vocabulary, split: Split) -> Replacement | ReplacedBySimilar:
    random_id, shares = RANDOM_IDS[data.random_ids](vocabulary, split), (data.keep_share, data.random_share)
    if data.similar_words:
        assert isinstance(vocabulary, Tokenizer), "similar words are written by a tokenizer"
        return ReplacedBySimilar(SimilarTable.read(data.similar_words, vocabulary), random_id, *shares)
    return Replacement(vocabulary.mask_id, random_id, *shares, REPLACED_BY[data.replace_by])


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    keys: np.ndarray,
    rule: MaskRule,
    special: int | np.ndarray = 3,
    continues: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Mask tokens of each row and return their labels, in P = min(rule.max_predictions, L) slots.

    `input_ids` int32 [B, L]; `candidates` bool [B, L] is true where a token may be hidden; `special`, int64 [B] or one
    number, counts the tokens of a row that may not; `keys` uint64 [B], one per sequence, are all that the draws depend
    on; `continues`, bool for each candidate in order, says which continue a unit, if the ids do not show it.
    Returns the ids after masking, int32 [B, L], and `mlm_positions`, `mlm_labels` int32 [B, P] in ascending order of
    position, 0 in unused slots, and `mlm_weights` float32 [B, P], 1 in used slots and 0 in the others.
    """
    available = np.count_nonzero(candidates, axis=1)
    if rule.room is not None:
        counts = rule.room.limit(available)
    else:
        counts = rule.count.draw(available + special, available, keys, rule.probability)
    slots = min(rule.max_predictions, input_ids.shape[1])
    counts = np.minimum(np.minimum(counts, slots), available)
    if rule.unit.needs_words and continues is None:
        assert rule.is_continuation is not None
        continues = rule.is_continuation[input_ids[candidates]]
    order_keys = fold_in(keys, "mask order")
    if rule.weights is not None:
        positions = draw_by_weight(candidates, rule.weights[input_ids], counts, order_keys, slots)
    else:
        positions = rule.unit.choose(candidates, continues, counts, order_keys, slots)
    is_used = positions < input_ids.shape[1]
    positions[~is_used] = 0
    cells = positions + np.arange(len(positions))[:, None] * input_ids.shape[1]
    labels = input_ids.ravel()[cells]
    masked = input_ids.copy()
    of_slot = None
    if rule.replacement.needs_words:
        of_cell = np.zeros(input_ids.shape, bool)
        of_cell[candidates] = continues
        of_slot = of_cell.ravel()[cells]
    masked.ravel()[cells[is_used]] = rule.replacement.shown(labels, positions, is_used, keys, of_slot)[is_used]
    return masked, {
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.where(is_used, labels, 0),
        "mlm_weights": is_used.astype(np.float32),
    }


def token_counts(text: Split | Segments, vocab_size: int) -> np.ndarray:
    """How often each token occurs in a text: int64 [vocab_size]. Reads all of it."""
    offsets, counts = text.sentence_offsets, np.zeros(vocab_size, np.int64)
    for first in range(0, len(offsets) - 1, _SENTENCES_AT_A_TIME):
        edges = offsets[first : first + _SENTENCES_AT_A_TIME + 1]
        counts += np.bincount(text.tokens(edges[:-1], np.diff(edges)), minlength=vocab_size)
    return counts


def token_weights(text: Split | Segments, vocab_size: int, power: float) -> np.ndarray:
    """max(count, 1)**-power of each token in a text: float64 [vocab_size].

    Rule: huggingface/transformers, examples of distillation, train.py (`--mlm_smoothing`).
    """
    return np.maximum(token_counts(text, vocab_size), 1.0) ** -power


def draw_by_weight(
    candidates: np.ndarray, weights: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
) -> np.ndarray:
    """Columns drawn without replacement, each time in proportion to the weights of those that are left.

    `weights` float64 [B, L], above 0; the rest is as in `Unit.choose`. A draw takes the largest u**(1 / weight), u
    uniform in (0, 1) (Efraimidis and Spirakis 2006), so the smallest -log(u) / weight.
    """
    length = candidates.shape[1]
    u = uniform(hash64(keys[:, None], np.arange(length))) + 2.0**-54
    order = np.argsort(np.where(candidates, -np.log(u) / weights, np.inf), axis=1, kind="stable")
    positions = np.full((len(order), slots), length, np.int64)
    kept = min(slots, length)
    positions[:, :kept] = order[:, :kept]
    positions[np.arange(slots) >= counts[:, None]] = length
    positions.sort(axis=1)
    return positions
