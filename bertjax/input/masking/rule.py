"""Masking as a whole: unit x count x replacement, made of a config, and applied to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Split, Vocabulary
from bertjax.input.masking.counts import COUNTS, Count, RoomOfUnits
from bertjax.input.masking.similar import ReplacedBySimilar, SimilarTable
from bertjax.input.masking.units import UNITS, WORDS, Unit
from bertjax.input.randomness import below, derive_key, fold_in, hash64, low_uniform

Draw = Callable[[np.ndarray], np.ndarray]  # uint64 random bits [n] -> ids [n]


@dataclass(frozen=True)
class Replacement:
    """What a hidden token is shown as; by default [MASK] in 80 %, a random token and itself in 10 % (BERT, 3.1)."""

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


def first_of_run(positions: np.ndarray) -> np.ndarray:
    """The first of the successive positions that each one is among, int64 [B, P]."""
    slot = np.arange(positions.shape[1])
    is_first = np.diff(positions, axis=1, prepend=-2) != 1
    return np.take_along_axis(positions, np.maximum.accumulate(np.where(is_first, slot, 0), axis=1), axis=1)


# Where the kind of replacement is drawn: for each token, or once for adjacent tokens (SpanBERT).
REPLACED_BY = {"token": lambda positions: positions, "span": first_of_run}


def _of_vocabulary(vocabulary: Vocabulary, _: Split) -> Draw:
    size = vocabulary.vocab_size
    return lambda bits: (bits >> 32) * size >> 32


def _ordinary(vocabulary: Vocabulary, _: Split) -> Draw:
    ids = np.setdiff1d(np.arange(vocabulary.vocab_size), list(vocabulary.special.values()))
    return lambda bits: ids[(bits >> 32) * len(ids) >> 32]


def _of_corpus(_: Vocabulary, split: Split) -> Draw:
    tokens, key = int(split.sentence_offsets[-1]), derive_key("token of the corpus")

    def draw(bits: np.ndarray) -> np.ndarray:
        starts = below(hash64(key, bits), tokens)
        return split.tokens(starts, np.ones_like(starts))

    return draw


RANDOM_IDS: dict[str, Callable[[Vocabulary, Split], Draw]] = {
    "vocabulary": _of_vocabulary,  # all ids, special ones too
    "ordinary": _ordinary,  # all but the special ones: RoBERTa, BigBird
    "corpus": _of_corpus,  # a token of the text, each as likely: SpanBERT
}


T = TypeVar("T")

# Fields of DataConfig that say how tokens are hidden, in addition to the shares and `max_predictions`.
MASKING_OPTIONS = (
    "masking",
    "ngram_shares",
    "span_p",
    "span_max",
    "mask_count",
    "mask_special",
    "replace_by",
    "random_ids",
    "similar_words",
)


@dataclass(frozen=True)
class MaskRule:
    """How many tokens of a sequence are hidden, which, and what is shown instead."""

    probability: float  # share of a sequence's tokens, [CLS] and [SEP] counted
    max_predictions: int  # P
    replacement: Replacement | ReplacedBySimilar
    unit: Unit
    count: Count
    is_continuation: np.ndarray | None = None  # bool [vocab_size], tokens that continue a word
    room: RoomOfUnits | None = None  # for a unit with a share

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
            _room(data, unit),
        )


def _room(data: DataConfig, unit: Unit) -> RoomOfUnits | None:
    return RoomOfUnits(data.sequence_length, unit.share, data.max_predictions) if unit.share else None


def _replacement(data: DataConfig, vocabulary: Vocabulary, split: Split) -> Replacement | ReplacedBySimilar:
    random_id, shares = RANDOM_IDS[data.random_ids](vocabulary, split), (data.keep_share, data.random_share)
    if data.similar_words:
        return ReplacedBySimilar(SimilarTable.read(data.similar_words, vocabulary), random_id, *shares)
    return Replacement(vocabulary.mask_id, random_id, *shares, REPLACED_BY[data.replace_by])


def check_masking(data: DataConfig) -> None:
    """Raise ValueError for a masking that is unknown or cannot be, naming the key, its value and what to do."""
    entry = member(UNITS, "masking", data.masking)
    unit = entry.make(data)
    if unit.needs_plane and unit.plane != WORDS and not data.units:
        raise ValueError(
            f"data.masking={data.masking!r} without data.units: no phrases or entities are marked; set data.units to "
            "spans:FIELD or list:FILE, or set another data.masking"
        )
    count = member(COUNTS, "mask_count", data.mask_count)
    member(REPLACED_BY, "replace_by", data.replace_by)
    member(RANDOM_IDS, "random_ids", data.random_ids)
    others = {key: name for name, other in UNITS.items() for key in other.options if key not in entry.options}
    for key in changed_options(data, others):
        raise ValueError(
            f"data.{key}={getattr(data, key)} with data.masking={data.masking!r} has no effect; leave it at its "
            f"default, or set data.masking={others[key]!r}"
        )
    if data.similar_words and not entry.is_whole:
        whole = ", ".join(name for name, other in UNITS.items() if other.is_whole)
        raise ValueError(
            f"data.similar_words={data.similar_words!r} with data.masking={data.masking!r}: only whole words have "
            f"similar ones; set data.masking to one of {whole}"
        )
    if data.similar_words and changed_options(data, ["replace_by"]):
        raise ValueError(
            f"data.replace_by={data.replace_by!r} with data.similar_words has no effect, for a word is replaced as "
            "one; leave it at its default"
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
    if room := _room(data, member(UNITS, "masking", data.masking).make(data)):
        packed = room.most(data.pairs_per_row)
    else:
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
    on; `continues`, bool for each candidate in order, says which continue a unit, if the ids do not show it.
    Returns the ids after masking, int32 [B, L], and `mlm_positions`, `mlm_labels` int32 [B, P] in ascending order of
    position, 0 in unused slots, and `mlm_weights` float32 [B, P], 1 in used slots and 0 in the others.
    """
    available = np.count_nonzero(candidates, axis=1)
    if rule.room is not None:
        counts = rule.room.limit(available)
    else:
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
