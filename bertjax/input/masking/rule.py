"""Masking as a whole: unit x count x replacement, made of a config, and applied to rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Vocabulary
from bertjax.input.masking.counts import COUNTS, Count
from bertjax.input.masking.replacement import RANDOM_IDS, REPLACED_BY, Replacement
from bertjax.input.masking.units import UNITS, Unit
from bertjax.input.randomness import fold_in

T = TypeVar("T")

# Fields of DataConfig that say how tokens are hidden, beside the shares and `max_predictions`.
MASKING_OPTIONS = (
    "masking",
    "ngram_shares",
    "span_p",
    "span_max",
    "mask_count",
    "mask_special",
    "replace_by",
    "random_ids",
)


@dataclass(frozen=True)
class MaskRule:
    """How many tokens of a sequence are hidden, which, and what is shown instead."""

    probability: float  # share of a sequence's tokens, [CLS] and [SEP] counted
    max_predictions: int  # P
    replacement: Replacement
    unit: Unit
    count: Count
    is_continuation: np.ndarray | None = None  # bool [vocab_size], tokens that continue a word

    @classmethod
    def of(cls, data: DataConfig, vocabulary: Vocabulary, split: Split) -> MaskRule:
        """The rule that a config asks for.

        Raises ValueError as `check_masking` does, and if the unit needs a plane that the token store does not have.
        """
        check_masking(data)
        unit = UNITS[data.masking].make(data)
        if unit.needs_plane and not split.tells_words:
            raise ValueError(
                f"data.masking={data.masking!r}: the token store does not tell which tokens form a unit; prepare it "
                "with data.segmenter, or choose another unit"
            )
        return cls(
            data.mask_probability,
            data.max_predictions,
            Replacement(
                vocabulary.mask_id,
                RANDOM_IDS[data.random_ids](vocabulary, split),
                data.keep_share,
                data.random_share,
                REPLACED_BY[data.replace_by],
            ),
            unit,
            COUNTS[data.mask_count],
            np.asarray(vocabulary.is_continuation) if unit.needs_words else None,
        )


def check_masking(data: DataConfig) -> None:
    """Raise ValueError for a masking that is unknown or cannot be, naming the key, its value and what to do."""
    entry = member(UNITS, "masking", data.masking)
    entry.make(data)
    count = member(COUNTS, "mask_count", data.mask_count)
    member(REPLACED_BY, "replace_by", data.replace_by)
    member(RANDOM_IDS, "random_ids", data.random_ids)
    others = {key: name for name, other in UNITS.items() for key in other.options if key not in entry.options}
    for key in changed_options(data, others):
        raise ValueError(
            f"data.{key}={getattr(data, key)} with data.masking={data.masking!r} has no effect; leave it at its "
            f"default, or set data.masking={others[key]!r}"
        )
    least = count.least_limit(data.sequence_length, data.mask_probability)
    if data.max_predictions < least:
        raise ValueError(
            f"data.max_predictions={data.max_predictions} with data.mask_count={data.mask_count!r}: a row of "
            f"{data.sequence_length} tokens of which {data.mask_probability:.0%} are hidden may need {least}; "
            "raise it to that"
        )


def changed_options(data: DataConfig, keys: Iterable[str] = MASKING_OPTIONS) -> list[str]:
    """Those of the keys whose values are not the defaults."""
    usual = DataConfig()
    return [key for key in keys if getattr(data, key) != getattr(usual, key)]


def member(registry: Mapping[str, T], key: str, name: str) -> T:
    """What a registry has under the name in `data.<key>`. Raises ValueError for another name, with the list."""
    if name not in registry:
        raise ValueError(f"data.{key}={name!r} is unknown; choose from {', '.join(registry)}")
    return registry[name]


def most_predictions(data: DataConfig) -> int:
    """The most tokens that are hidden in a row of a batch, packed or not."""
    if data.packing == "none":
        return data.max_predictions
    count = member(COUNTS, "mask_count", data.mask_count)
    packed = count.most(data.sequence_length, data.pairs_per_row, data.mask_probability)
    return min(packed, data.max_predictions * data.pairs_per_row)


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    keys: np.ndarray,
    rule: MaskRule,
    special: int | np.ndarray = 3,
    continues: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Hide tokens of each row and say what they were.

    `input_ids` int32 [B, L]; `candidates` bool [B, L] is true where a token may be hidden; `special`, int64 [B] or one
    number, counts the tokens of a row that may not; `keys` uint64 [B], one per sequence, are all that the draws depend
    on; `continues`, bool for each candidate in order, says which continue a unit, where it is not the ids that tell.
    Returns the ids after masking, int32 [B, L], and `mlm_positions`, `mlm_labels` int32 [B, P] in ascending order of
    position, 0 in unused slots, and `mlm_weights` float32 [B, P], 1 in used slots and 0 in the others.
    """
    available = np.count_nonzero(candidates, axis=1)
    counts = rule.count.draw(available + special, available, keys, rule.probability)
    counts = np.minimum(np.minimum(counts, rule.max_predictions), available)
    if rule.unit.needs_words and continues is None:
        assert rule.is_continuation is not None
        continues = rule.is_continuation[input_ids[candidates]]
    order_keys = fold_in(keys, "mask order")
    positions = rule.unit.choose(candidates, continues, counts, order_keys, rule.max_predictions)
    is_used = positions < input_ids.shape[1]
    positions[~is_used] = 0
    cells = positions + np.arange(len(positions))[:, None] * input_ids.shape[1]
    labels = input_ids.ravel()[cells]
    masked = input_ids.copy()
    masked.ravel()[cells[is_used]] = rule.replacement.shown(labels, positions, is_used, keys)[is_used]
    return masked, {
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.where(is_used, labels, 0),
        "mlm_weights": is_used.astype(np.float32),
    }
