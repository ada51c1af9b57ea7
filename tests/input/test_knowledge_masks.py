"""Knowledge masking of ERNIE 1.0, with units of the token store. test_recipe_masks.py checks its shares."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
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
    """A split with planes: every fifth token begins an entity, and every third token begins a phrase."""

    def has_plane(self, plane: str) -> bool:
        return plane in ("entities", "phrases")

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str) -> np.ndarray:
        shift = starts - (np.cumsum(lengths) - lengths)
        return (np.arange(lengths.sum()) + np.repeat(shift, lengths)) % {"entities": 5, "phrases": 3}[plane] != 0


SPLIT = SplitWithPlanes([[100] * 5] * 30, all_different=True)


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_long_units_are_masked_at_the_configured_share(packing: str) -> None:
    """Units of 20 tokens, so that the number of masked tokens varies widely, up to `max_predictions`."""
    data = replace(DATA, sequence_length=128, max_predictions=127, packing=packing)
    ids = np.full((ROWS, 128), 7, np.int32)
    places = np.ones(ids.shape, bool)
    places[:, [0, 60, -1]] = False
    continues = np.tile(np.arange(125) % 20 != 0, ROWS)
    rule = MaskRule.of(data, SPECIALS, SPLIT)
    _, masks = mask_tokens(ids, places, hash64(1, np.arange(ROWS)), rule, continues=continues)
    # A row has six units of 20 tokens and one of 5.
    spread = np.sqrt(ROWS * (6 * 20**2 + 5**2) * 0.15 * 0.85) / places.sum()
    assert abs(masks["mlm_weights"].sum() / places.sum() - 0.15) < 4.5 * spread


@pytest.mark.parametrize(
    ("masking", "size", "count", "packing"), [("entities", 5, "each", "pairs"), ("phrases", 3, "round", "none")]
)
def test_whole_entities_or_phrases_are_masked(masking: str, size: int, count: str, packing: str) -> None:
    """Token n of the split has the id 5 + n, which determines its unit. If a row cuts a unit, its part is a unit."""
    data = replace(DATA, masking=masking, mask_count=count, packing=packing, pairs_per_row=3)
    batch = RowBatches(SPLIT, replace(SPECIALS, vocab_size=20_000), data, 0).batch(0, 128)
    used, ids = batch["mlm_weights"] > 0, batch["input_ids"].copy()
    rows, slots = np.nonzero(used)
    is_hidden = np.zeros(ids.shape, bool)
    ids[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    is_hidden[rows, batch["mlm_positions"][rows, slots]] = True
    unit = np.where(ids >= 5, (ids - 5) // size, -1 - np.arange(ids.shape[1]))
    part = np.cumsum(np.diff(unit, axis=1, prepend=-(10**6)) != 0, axis=1) + 1000 * np.arange(len(ids))[:, None]
    sizes, masked = np.bincount(part.ravel()), np.bincount(part.ravel(), is_hidden.ravel())
    assert ((masked == 0) | (masked == sizes)).all()
    assert np.count_nonzero(masked == size) > 0.75 * np.count_nonzero(masked) > 300


def test_masking_of_unmarked_units_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.masking='phrases' without data\.units: .* set data\.units to spans:"):
        RowBatches(SPLIT, SPECIALS, replace(DATA, masking="phrases", units=""), 0)
    with pytest.raises(
        ValueError, match=r"data\.masking='entities': the token store marks no units of this kind; .* data\.units"
    ):
        RowBatches(MemorySplit([[100] * 5] * 30), SPECIALS, DATA, 0)
