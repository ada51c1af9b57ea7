"""Knowledge masking of ERNIE 1.0: over a million tokens, by definition, and red when a unit is broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials

from bertjax.config import DataConfig
from bertjax.input.batches import PairBatches
from bertjax.input.masking.rule import MaskRule, mask_tokens
from bertjax.input.randomness import hash64

ROWS, LENGTH, LONGEST = 8_192, 130, 6
SPECIALS = Specials(vocab_size=30_000)
DATA = DataConfig(
    sequence_length=LENGTH,
    masking="entities",
    units="spans:entities",
    mask_count="each",
    max_predictions=40,
    random_ids="ordinary",
)


class SplitWithPlanes(MemorySplit):
    """A split that tells entities and phrases: of tokens numbered from 0, each fifth and each third begins one."""

    def has_plane(self, plane: str) -> bool:
        return plane in ("entities", "phrases")

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str) -> np.ndarray:
        shift = starts - (np.cumsum(lengths) - lengths)
        return (np.arange(lengths.sum()) + np.repeat(shift, lengths)) % {"entities": 5, "phrases": 3}[plane] != 0


SPLIT = SplitWithPlanes([[100] * 5] * 30, all_different=True)


@pytest.fixture(scope="module")
def text() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of random tokens, where their text is, and which of its tokens continue a unit of 1 to `LONGEST` tokens."""
    draw = np.random.default_rng(5)
    ids = draw.integers(5, SPECIALS.vocab_size, (ROWS, LENGTH), dtype=np.int32)
    places = np.ones(ids.shape, bool)
    places[:, [0, 60, -1]] = False
    sizes = draw.integers(1, LONGEST + 1, places.sum())
    starts = np.zeros(places.sum(), bool)
    starts[np.minimum(np.cumsum(sizes), len(starts) - 1)] = True
    return ids, places, ~starts


def hidden(data: DataConfig, text: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Whether each token of the text is hidden, the number of the unit of each, and the batch."""
    ids, places, continues = text
    rule = MaskRule.of(data, SPECIALS, SPLIT)
    masked, found = mask_tokens(ids, places, hash64(1, np.arange(ROWS)), rule, continues=continues)
    is_hidden = np.zeros(ids.shape, bool)
    rows, slots = np.nonzero(found["mlm_weights"])
    is_hidden[rows, found["mlm_positions"][rows, slots]] = True
    first = np.zeros(ids.shape, bool)
    first[:, 1] = True  # a row begins with a unit
    return is_hidden[places], np.cumsum(~continues | first[places]) - 1, {"input_ids": masked, **found}


def of_units(is_hidden: np.ndarray, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many tokens each unit has, and how many of them are hidden."""
    return np.bincount(unit), np.bincount(unit, is_hidden)


def test_units_are_hidden_independently_of_their_length(text: tuple[np.ndarray, ...]) -> None:
    is_hidden, unit, _ = hidden(DATA, text)
    assert len(is_hidden) > 1_000_000
    sizes, found = of_units(is_hidden, unit)
    assert ((found == 0) | (found == sizes)).all(), "no unit is cut"
    spread = np.sqrt((sizes.astype(float) ** 2).sum() * 0.15 * 0.85) / sizes.sum()
    assert abs(is_hidden.mean() - 0.15) < 4.5 * spread
    for size in range(1, LONGEST + 1):
        chosen = found[sizes == size] > 0
        # The limit of a row, 40 tokens, is reached by some rows with many long units.
        assert abs(chosen.mean() - 0.15) < 4.5 * np.sqrt(0.15 * 0.85 / len(chosen)) + 0.0015, size
    # Neighbours are independent.
    pairs = (found[:-1] > 0) & (found[1:] > 0)
    assert abs(pairs.mean() - 0.15**2) < 5 * 0.15 / np.sqrt(len(pairs))


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_long_units_have_the_share_where_there_is_room(packing: str) -> None:
    """Units of 20 tokens: `max_predictions` is the limit, and no more is assumed of their number."""
    data = replace(DATA, sequence_length=128, max_predictions=127, packing=packing)
    ids = np.full((ROWS, 128), 7, np.int32)
    places = np.ones(ids.shape, bool)
    places[:, [0, 60, -1]] = False
    continues = np.tile(np.arange(125) % 20 != 0, ROWS)
    is_hidden, unit, _ = hidden(data, (ids, places, continues))
    sizes, _ = of_units(is_hidden, unit)
    spread = np.sqrt((sizes.astype(float) ** 2).sum() * 0.15 * 0.85) / sizes.sum()
    assert abs(is_hidden.mean() - 0.15) < 4.5 * spread


@pytest.mark.parametrize("broken", ["tokens", "shifted"])
def test_the_rule_of_whole_units_is_red_when_units_are_broken(text: tuple[np.ndarray, ...], broken: str) -> None:
    ids, places, continues = text
    data = replace(DATA, masking="tokens", units="") if broken == "tokens" else DATA
    told = continues if broken == "tokens" else np.roll(continues, 1)
    is_hidden, _, _ = hidden(data, (ids, places, told))
    sizes, found = of_units(is_hidden, hidden(DATA, text)[1])
    assert ((found > 0) & (found < sizes)).mean() > 0.1


def test_each_token_of_a_unit_is_replaced_by_itself(text: tuple[np.ndarray, ...]) -> None:
    ids, _, _ = text
    _, _, batch = hidden(DATA, text)
    rows, slots = np.nonzero(batch["mlm_weights"])
    shown = batch["input_ids"][rows, batch["mlm_positions"][rows, slots]]
    labels = batch["mlm_labels"][rows, slots]
    is_mask, is_kept = shown == SPECIALS.mask_id, shown == labels
    bound = 4.5 * np.sqrt(0.25 / len(shown))
    assert abs(is_mask.mean() - 0.8) < bound and abs(is_kept.mean() - 0.1) < bound
    assert not np.isin(shown[~is_mask], list(SPECIALS.special.values())).any()
    beside = np.diff(batch["mlm_positions"][rows, slots]) == 1
    both = is_kept[:-1][beside] & is_kept[1:][beside]
    assert abs(both.mean() - 0.01) < 4.5 * np.sqrt(0.01 / len(both)), "not one draw for a whole unit"
    untouched = batch["input_ids"] != ids
    untouched[rows, batch["mlm_positions"][rows, slots]] = False
    assert not untouched.any()


@pytest.mark.parametrize(
    ("masking", "size", "count", "packing"), [("entities", 5, "each", "pairs"), ("phrases", 3, "round", "none")]
)
def test_batches_hide_whole_units_of_the_level(masking: str, size: int, count: str, packing: str) -> None:
    """Token n of the split is 5 + n, which tells its unit; of a unit that a row cuts, its part is hidden whole."""
    data = replace(DATA, masking=masking, mask_count=count, packing=packing, pairs_per_row=3)
    batch = PairBatches(SPLIT, replace(SPECIALS, vocab_size=20_000), data, 0).batch(0, 128)
    used, ids = batch["mlm_weights"] > 0, batch["input_ids"].copy()
    rows, slots = np.nonzero(used)
    is_hidden = np.zeros(ids.shape, bool)
    ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    is_hidden[rows, batch["mlm_positions"][rows, slots]] = True
    unit = np.where(ids >= 5, (ids - 5) // size, -1 - np.arange(ids.shape[1]))
    part = np.cumsum(np.diff(unit, axis=1, prepend=-(10**6)) != 0, axis=1) + 1000 * np.arange(len(ids))[:, None]
    sizes, found = of_units(is_hidden.ravel(), part.ravel())
    assert ((found == 0) | (found == sizes)).all()
    assert np.count_nonzero(found == size) > 0.75 * np.count_nonzero(found) > 300


def test_units_that_nothing_marks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.masking='phrases' without data\.units: .* set data\.units to spans:"):
        PairBatches(SPLIT, SPECIALS, replace(DATA, masking="phrases", units=""), 0)
    with pytest.raises(
        ValueError, match=r"data\.masking='entities': the token store marks no units of this kind; .* data\.units"
    ):
        PairBatches(MemorySplit([[100] * 5] * 30), SPECIALS, DATA, 0)
