"""Masking options and their valid combinations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from bertjax.config import SHORTEST_ROW, SHORTEST_TEXT, DataConfig
from bertjax.config.registry import Registry
from bertjax.input.layout import TextView, Vocabulary
from bertjax.input.masking.counts import COUNTS, UnitLimit
from bertjax.input.masking.units import UNITS, WORDS, Unit
from bertjax.input.randomness import below, derive_key, hash64
from bertjax.text.units import listed_planes

Draw = Callable[[np.ndarray], np.ndarray]  # uint64 random bits [n] -> ids [n]
T = TypeVar("T")


def first_of_run(positions: np.ndarray) -> np.ndarray:
    """For each position, the first position of its run of consecutive positions: int64 [B, P]."""
    slot = np.arange(positions.shape[1])
    is_first = np.diff(positions, axis=1, prepend=-2) != 1
    return np.take_along_axis(positions, np.maximum.accumulate(np.where(is_first, slot, 0), axis=1), axis=1)


# Position at which the kind of replacement is drawn: each token's own, or one for adjacent tokens (SpanBERT).
REPLACED_BY: Registry[Callable[[np.ndarray], np.ndarray]] = Registry(
    "replace_by", {"token": lambda positions: positions, "span": first_of_run}
)


def _any_id(vocabulary: Vocabulary, _: TextView) -> Draw:
    size = vocabulary.vocab_size
    return lambda bits: (bits >> 32) * size >> 32


def _ordinary_id(vocabulary: Vocabulary, _: TextView) -> Draw:
    ids = np.setdiff1d(np.arange(vocabulary.vocab_size), list(vocabulary.special.values()))
    return lambda bits: ids[(bits >> 32) * len(ids) >> 32]


def _corpus_token(_: Vocabulary, split: TextView) -> Draw:
    tokens, key = split.num_tokens, derive_key("token of the corpus")

    def draw(bits: np.ndarray) -> np.ndarray:
        starts = below(hash64(key, bits), tokens)
        return split.tokens(starts, np.ones_like(starts))

    return draw


RANDOM_IDS: Registry[Callable[[Vocabulary, TextView], Draw]] = Registry(
    "random_ids",
    {
        "vocabulary": _any_id,  # all ids, including special tokens
        "ordinary": _ordinary_id,  # all except special tokens: RoBERTa, BigBird
        "corpus": _corpus_token,  # a uniformly drawn token of the text: SpanBERT
    },
)


# Fields of DataConfig that change masking, besides the shares and `max_predictions`.
MASKING_OPTIONS = (
    "masking",
    "ngram_shares",
    "span_p",
    "span_max",
    "mask_count",
    "mask_special",
    "mask_power",
    "replace_by",
    "random_ids",
    "similar_words",
)


def check_masking(data: DataConfig) -> None:
    """Raise ValueError for unknown or invalid masking options."""
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
            f"data.replace_by={data.replace_by!r} with data.similar_words has no effect, because whole words are "
            "replaced; leave it at its default"
        )
    least = count.least_limit(data.sequence_length, data.mask_probability)
    if data.max_predictions < least:
        raise ValueError(
            f"data.max_predictions={data.max_predictions} with data.mask_count={data.mask_count!r}: a row of "
            f"{data.sequence_length} tokens with data.mask_probability={data.mask_probability:.0%} may need {least}; "
            "raise it to that"
        )


def changed_options(data: DataConfig, keys: Iterable[str] = MASKING_OPTIONS) -> list[str]:
    """The keys whose values differ from the defaults."""
    defaults = DataConfig()
    return [key for key in keys if getattr(data, key) != getattr(defaults, key)]


def member(registry: Mapping[str, T], key: str, name: str) -> T:
    """Look up the value of `data.<key>` in a registry. Raises ValueError with the list of names if it is unknown."""
    if name not in registry:
        raise ValueError(f"data.{key}={name!r} is unknown; choose from {', '.join(registry)}")
    return registry[name]


def most_predictions(data: DataConfig) -> int:
    """The largest number of masked tokens in a row of a batch, packed or not."""
    if data.packing == "none":
        return data.max_predictions
    if room := unit_limit(data, member(UNITS, "masking", data.masking).make(data)):
        packed = room.most(data.pairs_per_row)
    else:
        count = member(COUNTS, "mask_count", data.mask_count)
        shortest = SHORTEST_ROW if data.rows == "pairs" else SHORTEST_TEXT
        packed = count.most(data.sequence_length, data.pairs_per_row, data.mask_probability, shortest)
    return min(packed, data.max_predictions * data.pairs_per_row)


def unit_limit(data: DataConfig, unit: Unit) -> UnitLimit | None:
    """The limit of masked tokens for a unit that is drawn independently, else None."""
    return UnitLimit(data.sequence_length, unit.share, data.max_predictions) if unit.share else None


def require_marked(stages: Sequence[DataConfig]) -> None:
    """Raise ValueError, before text is read, if a stage's `data.masking` needs units that `data.units` does not mark.

    Also refuses a list of units that no stage uses. The units of spans are unknown until the text is read.
    """
    data = stages[0]
    listed = listed_planes(data)
    units = {stage.masking: member(UNITS, "masking", stage.masking).make(stage) for stage in stages}
    for name, unit in units.items():
        is_segmented = unit.plane == WORDS and data.segmenter != "none"
        if not unit.needs_plane or is_segmented or (data.units and listed is None):
            continue
        if unit.plane not in (listed or ()):
            raise ValueError(
                f"data.masking={name!r} with data.units={data.units!r}, data.segmenter={data.segmenter!r}: no unit of "
                "this kind is marked; give data.units that marks them (for masking of units, data.segmenter), or set "
                "another data.masking"
            )
    if listed is not None and not listed & {unit.plane for unit in units.values()}:
        raise ValueError(
            f"data.units={data.units!r} with data.masking={', '.join(units)} has no effect: the list marks "
            f"{', '.join(sorted(listed))}; name the kinds of its units (word, phrase, entity) after a tab, set another "
            "data.masking, or leave the list out"
        )
