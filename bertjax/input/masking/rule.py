"""The masking rule of a config (unit, count and replacement), applied to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.masking.counts import COUNTS, Count, UnitLimit
from bertjax.input.masking.options import RANDOM_IDS, REPLACED_BY, Draw, check_masking, unit_limit
from bertjax.input.masking.similar import ReplacedBySimilar, SimilarTable
from bertjax.input.masking.units import UNITS, Unit
from bertjax.input.randomness import fold_in, hash64, low_uniform, uniform
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertjax.input.tfrecords.rows import Segments

_SENTENCES_AT_A_TIME = 1 << 17


@dataclass(frozen=True)
class Replacement:
    """Replaces masked tokens: by default 80 % by [MASK] and 10 % by a random token; 10 % stay (BERT, section 3.1)."""

    mask_id: int
    random_id: Draw
    keep_share: float = 0.1
    random_share: float = 0.1  # the rest becomes [MASK]
    drawn_at: Callable[[np.ndarray], np.ndarray] = lambda positions: positions  # see `REPLACED_BY`
    needs_words: bool = False

    def draw(
        self,
        labels: np.ndarray,
        positions: np.ndarray,
        is_used: np.ndarray,
        keys: np.ndarray,
        continues: np.ndarray | None = None,
    ) -> np.ndarray:
        """Draw the ids, int32 [B, P], that replace `labels`, int32 [B, P], at `positions`, int64 [B, P].

        Positions are ascending where `is_used`. All draws depend only on `keys`, uint64 [B], and the positions.
        `continues` is for a replacement that `needs_words`.
        """
        keys = fold_in(keys, "replacement")[:, None]
        bits = hash64(keys, positions)
        drawn_at = self.drawn_at(positions)
        kind = low_uniform(bits if drawn_at is positions else hash64(keys, drawn_at))
        replacement = np.where(kind < self.keep_share, labels, np.int32(self.mask_id))
        is_random = (kind >= self.keep_share) & (kind < self.keep_share + self.random_share) & is_used
        replacement[is_random] = self.random_id(bits[is_random])
        return replacement


@dataclass(frozen=True)
class MaskRule:
    """How many tokens of a sequence to mask, which ones, and what replaces them."""

    probability: float  # share of a sequence's tokens, including [CLS] and [SEP]
    max_predictions: int  # P
    replacement: Replacement | ReplacedBySimilar
    unit: Unit
    count: Count
    is_continuation: np.ndarray | None = None  # bool [vocab_size], tokens that continue a word
    limit: UnitLimit | None = None  # for a unit with a share
    weights: np.ndarray | None = None  # float64 [vocab_size]: relative probability of drawing a single token

    @classmethod
    def of(cls, data: DataConfig, vocabulary: Vocabulary, split: TextView) -> MaskRule:
        """Make the rule of a config.

        Raises ValueError like `check_masking`, and if the token store lacks a plane that the unit needs.
        """
        check_masking(data)
        unit = UNITS[data.masking].make(data)
        if unit.needs_plane and not split.has_plane(unit.plane):
            raise ValueError(
                f"data.masking={data.masking!r}: the token store marks no units of this kind; prepare it with "
                "data.units that marks them (for masking of units, data.segmenter), or set another data.masking"
            )
        return cls(
            data.mask_probability,
            data.max_predictions,
            _replacement(data, vocabulary, split),
            unit,
            COUNTS[data.mask_count],
            np.asarray(vocabulary.is_continuation) if unit.needs_words else None,
            unit_limit(data, unit),
            token_weights(split, vocabulary.vocab_size, data.mask_power) if data.mask_power else None,
        )


def _replacement(data: DataConfig, vocabulary: Vocabulary, split: TextView) -> Replacement | ReplacedBySimilar:
    random_id, shares = RANDOM_IDS[data.random_ids](vocabulary, split), (data.keep_share, data.random_share)
    if data.similar_words:
        assert isinstance(vocabulary, Tokenizer), "similar words require a tokenizer"
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
    """Mask tokens of each row, in P = min(rule.max_predictions, L) slots.

    Args:
        input_ids: int32 [B, L].
        candidates: bool [B, L], tokens that may be masked.
        keys: uint64 [B], one per sequence; the draws depend on nothing else.
        rule: What to mask, and how.
        special: int64 [B] or one number: tokens of a row that are not candidates.
        continues: bool per candidate, in order: it continues a unit. By default derived from its id.

    Returns the masked ids, int32 [B, L], and `mlm_positions` and `mlm_labels`, int32 [B, P], by ascending position and
    0 in unused slots, and `mlm_weights`, float32 [B, P], 1 in used slots and 0 in others.
    """
    available = np.count_nonzero(candidates, axis=1)
    if rule.limit is not None:
        counts = rule.limit.limit(available)
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
        _require_chosen(rule.unit, positions, candidates, counts, slots)
    is_used = positions < input_ids.shape[1]
    positions[~is_used] = 0
    cells = positions + np.arange(len(positions))[:, None] * input_ids.shape[1]
    labels = input_ids.ravel()[cells]
    masked = input_ids.copy()
    slot_continues = None
    if rule.replacement.needs_words:
        cell_continues = np.zeros(input_ids.shape, bool)
        cell_continues[candidates] = continues
        slot_continues = cell_continues.ravel()[cells]
    masked.ravel()[cells[is_used]] = rule.replacement.draw(labels, positions, is_used, keys, slot_continues)[is_used]
    return masked, {
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.where(is_used, labels, 0),
        "mlm_weights": is_used.astype(np.float32),
    }


def _require_chosen(unit: Unit, columns: np.ndarray, candidates: np.ndarray, counts: np.ndarray, slots: int) -> None:
    """Raise ValueError if a unit's choice is not what `Unit.choose` describes."""
    rows, length = candidates.shape
    name = type(unit).__name__
    if columns.shape != (rows, slots) or columns.dtype != np.int64:
        raise ValueError(
            f"masking unit {name}: `choose` returned {columns.dtype} {[*columns.shape]}, not int64 {[rows, slots]}"
        )
    used = columns < length
    ascends = (columns[:, 1:] > columns[:, :-1]) | ~used[:, 1:]
    inside = np.take_along_axis(candidates, np.where(used, columns, 0), axis=1) | ~used
    if not (ascends.all() and inside.all() and (columns >= 0).all() and (used.sum(axis=1) <= counts).all()):
        raise ValueError(
            f"masking unit {name}: `choose` must return ascending columns of candidates, at most `counts` per row, and "
            f"{length} in unused slots"
        )


def token_counts(text: TextView | Segments, vocab_size: int) -> np.ndarray:
    """Count each token of a text: int64 [vocab_size]. Reads the whole text unless the store has the counts."""
    if isinstance(text, SplitView) and text.token_counts is not None:
        return text.token_counts
    offsets, counts = text.sentence_offsets, np.zeros(vocab_size, np.int64)
    for first in range(0, len(offsets) - 1, _SENTENCES_AT_A_TIME):
        edges = offsets[first : first + _SENTENCES_AT_A_TIME + 1]
        counts += np.bincount(text.tokens(edges[:-1], np.diff(edges)), minlength=vocab_size)
    return counts


def token_weights(text: TextView | Segments, vocab_size: int, power: float) -> np.ndarray:
    """Weights that mask rare tokens more often: max(count, 1)**-power of each token, float64 [vocab_size].

    Rule: huggingface/transformers, distillation example, train.py (`--mlm_smoothing`).
    """
    return np.maximum(token_counts(text, vocab_size), 1.0) ** -power


def draw_by_weight(
    candidates: np.ndarray, weights: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
) -> np.ndarray:
    """Draw columns without replacement, each with a probability proportional to its weight among the remaining ones.

    `weights` is float64 [B, L], above 0; the other arguments are as in `Unit.choose`. Takes the columns with the
    smallest -log(u) / weight, u uniform in (0, 1) (Efraimidis and Spirakis 2006).
    """
    length = candidates.shape[1]
    u = uniform(hash64(keys[:, None], np.arange(length))) + 2.0**-54
    order = np.argsort(np.where(candidates, -np.log(u) / weights, np.inf), axis=1, kind="stable")
    positions = np.full((len(order), slots), length, np.int64)
    width = min(slots, length)
    positions[:, :width] = order[:, :width]
    positions[np.arange(slots) >= counts[:, None]] = length
    positions.sort(axis=1)
    return positions
