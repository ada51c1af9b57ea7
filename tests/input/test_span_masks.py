"""SpanBERT's masks follow every rule of facebookresearch/SpanBERT's masking.py over a million tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import reference_masks
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig, load_recipe
from bertjax.input.batches import RowBatches

SPECIALS = Specials(vocab_size=2000)
# The text has only ids below 1,000, so that the origin of random tokens can be checked.
SPLIT = MemorySplit(random_documents(900, seed=6, sentences=60), vocab_size=1000)
ROWS = 2_400
LENGTHS = 40  # longer runs are counted as runs of this length


def recipe() -> DataConfig:
    return replace(load_recipe("configs/spanbert.py").data, sources=())


def broken(data: DataConfig, rows: int) -> list[str]:
    """The names of the rules that the masks of some rows violate."""
    batches = RowBatches(SPLIT, SPECIALS, data, 1, objectives=("mlm",))
    batch = batches.rows(np.arange(rows))
    plain = RowBatches(SPLIT, SPECIALS, replace(data, keep_share=1.0, random_share=0.0), 1, objectives=("mlm",))
    texts, rng, violations = plain.rows(np.arange(rows))["input_ids"], random.Random(5), set()
    run_counts = {"runs": np.zeros(LENGTHS + 1), "reference": np.zeros(LENGTHS + 1)}
    kinds: list[str] = []
    replaced: list[int] = []
    for row, ids in enumerate(texts):
        text = np.flatnonzero(ids >= 5)
        words = reference_masks.split_words(text.tolist(), SPECIALS.is_continuation[ids[text]].tolist())
        starts, ends = {word[0] for word in words}, {word[-1] for word in words}
        hidden = batch["mlm_positions"][row][batch["mlm_weights"][row] > 0].tolist()
        if len(hidden) != ceil(0.15 * len(text)):
            violations.add("budget")
        theirs = reference_masks.spans(words, 0.2, 10, ceil(0.15 * len(text)), rng)
        for side, positions in (("runs", hidden), ("reference", theirs)):
            for length in reference_masks.runs(positions):
                run_counts[side][min(length, LENGTHS)] += 1
        first, cut = 0, 0
        for length in reference_masks.runs(hidden):
            places = hidden[first : first + length]
            first += length
            cut += places[-1] not in ends
            if places[0] not in starts:
                violations.add("a span starts with a word")
            inputs = batch["input_ids"][row, places]
            masked, same = inputs == SPECIALS.mask_id, inputs == ids[places]
            kind = "mask" if masked.all() else "same" if same.all() else "random" if not masked.any() else "mixed"
            if kind == "mixed" or (kind == "random" and length > 4 and same.sum() > length / 2):
                violations.add("one kind of replacement for a span")
            kinds.append(kind)
            replaced += inputs.tolist() if kind == "random" else []
        if cut > 1:
            violations.add("a span ends with a word, but where the budget ends")
    if replaced and (max(replaced) >= 1000 or min(replaced) < 5):
        violations.add("random tokens are of the text")
    shares = {kind: kinds.count(kind) / len(kinds) for kind in ("mask", "same", "random")}
    spread = 4.5 * 0.4 / len(kinds) ** 0.5
    if any(abs(shares[kind] - share) > spread for kind, share in (("mask", 0.8), ("same", 0.1), ("random", 0.1))):
        violations.add("80/10/10")
    ours, theirs = run_counts["runs"], run_counts["reference"]
    # The difference of two Poisson numbers has their sum as its variance.
    if (np.abs(ours - theirs) > 4.5 * np.sqrt(ours + theirs + 4)).any():
        violations.add("lengths")
    return sorted(violations)


def test_spanbert_masks_follow_every_published_rule() -> None:
    data = recipe()
    tokens = ROWS * data.sequence_length
    assert tokens > 10**6
    assert broken(data, ROWS) == []


@pytest.mark.parametrize(
    ("left_out", "rule"),
    [
        ({"masking": "tokens"}, "lengths"),
        ({"masking": "tokens"}, "a span starts with a word"),
        pytest.param({"masking": "words"}, "lengths", marks=pytest.mark.long),
        pytest.param({"span_p": 0.3}, "lengths", marks=pytest.mark.long),
        pytest.param({"span_max": 7}, "lengths", marks=pytest.mark.long),
        ({"mask_count": "round"}, "budget"),
        ({"replace_by": "token"}, "one kind of replacement for a span"),
        ({"random_ids": "vocabulary"}, "random tokens are of the text"),
        ({"random_share": 0.15}, "80/10/10"),
    ],
    ids=str,
)
def test_missing_rule_is_detected(left_out: dict, rule: str) -> None:
    data = recipe()
    if left_out.get("masking"):
        data = replace(data, span_p=DataConfig.span_p, span_max=DataConfig.span_max)
    assert rule in broken(replace(data, **left_out), 400)
