"""Masks of the recipes follow every published rule over a million tokens, and a missing rule is detected.

The expected numbers are from the papers and the authors' code, not from the recipes. For SpanBERT see
test_span_masks.py, for MacBERT test_similar_words.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pytest
import reference_masks
from pair_corpora import FIRST_TOKEN, MemorySplit, Specials, random_documents
from tiers import long_unless

from bertjax.config import Config, DataConfig, load_recipe
from bertjax.families.registry import get_family
from bertjax.input.batches import RowBatches

TEXT_IDS, SIGMAS = 200, 4.5
# The text has only ids below 200, so that half of the vocabulary's random tokens are not in the text.
SPECIALS = Specials(vocab_size=2 * TEXT_IDS)
SPECIAL_IDS = list(SPECIALS.special.values())


class Split(MemorySplit):
    """Words are as in the vocabulary; an entity is one token in most cases, or a few tokens."""

    def has_plane(self, plane: str) -> bool:
        return plane in ("continues", "entities")

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str) -> np.ndarray:
        ids = self.tokens(starts, lengths)
        return ids % 3 == 0 if plane == "continues" else ids % 5 < 2


SPLIT = Split(random_documents(900, seed=6, sentences=60), vocab_size=TEXT_IDS)


@dataclass(frozen=True)
class Masked:
    """Rows before and after masking; fields are [B, L]."""

    original: np.ndarray
    inputs: np.ndarray
    hidden: np.ndarray
    sequence: np.ndarray  # number of the sequence, unique in the batch; -1 in padding

    @cached_property
    def is_special(self) -> np.ndarray:
        return np.isin(self.original, SPECIAL_IDS) & (self.sequence >= 0)

    @cached_property
    def is_text(self) -> np.ndarray:
        return ~self.is_special & (self.sequence >= 0)

    def per_sequence(self, what: np.ndarray) -> np.ndarray:
        """Count the true entries of `what` in each sequence, int64 [sequences]."""
        return np.bincount(self.sequence[self.sequence >= 0], what[self.sequence >= 0]).astype(np.int64)

    @cached_property
    def kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether each masked token is replaced by [MASK], kept, or replaced by another token; bool [hidden] each."""
        inputs, original = self.inputs[self.hidden], self.original[self.hidden]
        is_mask, is_kept = inputs == SPECIALS.mask_id, inputs == original
        return is_mask, is_kept, ~is_mask & ~is_kept

    def units(self, continues: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and masked tokens in each unit; `continues`, bool [B, L], marks tokens that continue a unit."""
        is_text, sequence = self.is_text.ravel(), self.sequence.ravel()
        is_inside = continues.ravel()[is_text] & (np.diff(sequence[is_text], prepend=-1) == 0)
        number = np.cumsum(~is_inside) - 1
        return np.bincount(number), np.bincount(number, self.hidden.ravel()[is_text])


Rule = Callable[[Masked], bool]


def near(actual: float, expected: float, variance: float) -> bool:
    """Whether a sum of draws is within `SIGMAS` standard deviations of its expectation."""
    return abs(actual - expected) <= SIGMAS * variance**0.5 + 1e-6


def shares(mask: float, keep: float, other: float, masked: Masked) -> bool:
    """Shares of [MASK], kept and random tokens; a few random tokens happen to be the token or [MASK]."""
    return all(
        near(kind.sum(), share * len(kind), share * (1 - share) * len(kind) + 4)
        for kind, share in zip(masked.kinds, (mask, keep, other), strict=True)
    )


def each_replaced_by_itself(keep: float, masked: Masked) -> bool:
    """Two masked neighbours are both kept as often as for independent draws."""
    is_kept = np.zeros(masked.hidden.shape, bool)
    is_kept[masked.hidden] = masked.kinds[1]
    both = masked.hidden[:, :-1] & masked.hidden[:, 1:]
    count, both_kept = both.sum(), (is_kept[:, :-1] & is_kept[:, 1:] & both).sum()
    return bool(count > 500) and near(both_kept, keep**2 * count, keep**2 * (1 + 2 * keep) * count)


def uniform_over_vocabulary(special: bool, masked: Masked) -> bool:
    """Random tokens are uniform over the vocabulary, with or without the special tokens."""
    other = masked.inputs[masked.hidden][masked.kinds[2]]
    ids = SPECIALS.vocab_size - (1 if special else len(SPECIAL_IDS))  # a random [MASK] does not count as random
    beyond, specials = TEXT_IDS / ids, np.isin(other, SPECIAL_IDS).sum()
    expected = len(other) * (len(SPECIAL_IDS) - 1) / ids if special else 0.0
    return near((other >= TEXT_IDS).sum(), beyond * len(other), len(other) / 4) and near(specials, expected, expected)


def no_special(masked: Masked) -> bool:
    return not (masked.hidden & masked.is_special).any()


def special_as_others(masked: Masked) -> bool:
    """Special tokens are masked as often as all tokens."""
    real = masked.sequence >= 0
    share, count = masked.hidden[real].mean(), masked.is_special.sum()
    return near((masked.hidden & masked.is_special).sum(), share * count, share * (1 - share) * count)


def rounded(share: float, most: int, masked: Masked) -> bool:
    """google-research/bert: min(most, max(1, int(round(share n)))) for n tokens, including special tokens."""
    expected = [min(most, max(1, round(share * n))) for n in masked.per_sequence(masked.sequence >= 0).tolist()]
    return masked.per_sequence(masked.hidden).tolist() == expected


def at_most_rounded(share: float, most: int, masked: Masked) -> bool:
    """google-research/albert: like `rounded`, but a limit, which whole n-grams mostly reach."""
    sizes = masked.per_sequence(masked.sequence >= 0).tolist()
    limits = np.array([min(most, max(1, round(share * n))) for n in sizes])
    counts = masked.per_sequence(masked.hidden)
    return bool((counts <= limits).all() and (counts == limits).mean() > 0.97)


def randomly_rounded(share: float, masked: Masked) -> bool:
    """fairseq: int(share n + u), u uniform in [0, 1), for a sequence of n tokens."""
    expected, counts = share * masked.per_sequence(masked.sequence >= 0), masked.per_sequence(masked.hidden)
    part, more = expected % 1, counts - np.floor(expected)
    low = part < 0.5
    return bool(np.isin(more, (0, 1)).all()) and all(
        near(more[some].sum(), part[some].sum(), (part * (1 - part))[some].sum()) for some in (low, ~low)
    )


def each_with(share: float, masked: Masked) -> bool:
    """Every token of the text is drawn independently: counts have the mean and variance of a binomial."""
    n, counts = masked.per_sequence(masked.is_text), masked.per_sequence(masked.hidden)
    variance = n * share * (1 - share)
    squares = (counts - n * share) ** 2 / variance
    return near(counts.sum(), share * n.sum(), variance.sum()) and near(squares.mean(), 1, 2.5 / len(n))


def neighbours(special: bool, masked: Masked) -> bool:
    """If k of n tokens are masked, k (k - 1) / n pairs of neighbours are, as for tokens drawn one by one."""
    free = masked.sequence.ravel() >= 0 if special else masked.is_text.ravel()
    sequence, hidden = masked.sequence.ravel()[free], masked.hidden.ravel()[free]
    pairs = (hidden[:-1] & hidden[1:] & (sequence[:-1] == sequence[1:])).sum()
    n, k = np.bincount(sequence), np.bincount(sequence, hidden)
    expected = (k * (k - 1) / np.maximum(n, 1)).sum()
    return near(pairs, expected, expected)


def continues_word(masked: Masked) -> np.ndarray:
    return SPECIALS.is_continuation[masked.original]


def continues_entity(masked: Masked) -> np.ndarray:
    return masked.original % 5 < 2


def whole(continues: Callable[[Masked], np.ndarray], masked: Masked) -> bool:
    """All or none of a unit's tokens are masked."""
    sizes, counts = masked.units(continues(masked))
    return bool(((counts == 0) | (counts == sizes)).all())


def each_unit_with(share: float, continues: Callable[[Masked], np.ndarray], masked: Masked) -> bool:
    """Units are drawn independently of their length and of the previous unit."""
    sizes, counts = masked.units(continues(masked))
    chosen = counts > 0
    for size in (1, 2, 3):
        same_size = chosen[sizes == size]
        # Full rows skip a small share of the units.
        if abs(same_size.mean() - share) > SIGMAS * (share * (1 - share) / len(same_size)) ** 0.5 + 0.002:
            return False
    pairs = (chosen[:-1] & chosen[1:]).sum()
    return near(pairs, chosen.mean() ** 2 * (len(chosen) - 1), share**2 * 1.3 * len(chosen))


def ngram_lengths(masked: Masked) -> bool:
    """Runs of masked tokens are as long as for the reference's n-grams, n <= 3 words with shares 1/n."""
    rng, longest = random.Random(5), 20
    run_counts = np.zeros((2, longest + 1))
    parts = [1 / n for n in (1, 2, 3)]
    for ids, sequence, hidden in zip(masked.original, masked.sequence, masked.hidden, strict=True):
        text = np.flatnonzero((ids >= FIRST_TOKEN) & (sequence >= 0))
        words = reference_masks.split_words(text.tolist(), SPECIALS.is_continuation[ids[text]].tolist())
        budget = min(20, max(1, round(0.15 * int((sequence >= 0).sum()))))
        theirs = reference_masks.ngrams(words, tuple(part / sum(parts) for part in parts), budget, rng)
        for side, positions in enumerate((np.flatnonzero(hidden).tolist(), theirs)):
            for length in reference_masks.runs(positions):
                run_counts[side][min(length, longest)] += 1
    # The difference of two Poisson numbers has their sum as its variance.
    return bool((np.abs(run_counts[0] - run_counts[1]) < SIGMAS * np.sqrt(run_counts.sum(0) + 4)).all())


BERT_REPLACEMENT: dict[str, Rule] = {
    "80/10/10": partial(shares, 0.8, 0.1, 0.1),
    "per token": partial(each_replaced_by_itself, 0.1),
}
ALL_IDS = {"random tokens": partial(uniform_over_vocabulary, True), "no special": no_special}
ORDINARY = {"random tokens": partial(uniform_over_vocabulary, False)}
ONE_BY_ONE = {"one by one": partial(neighbours, False)}
SHARES, KEPT = {"keep_share": 0.12}, {"random_share": 0.12}
FROM_TEXT = {"random_ids": "corpus"}


@dataclass(frozen=True)
class Case:
    recipe: str
    rows: int  # with more than a million tokens
    rules: dict[str, Rule]
    left_out: list[tuple[dict[str, Any], str]]  # changes of the recipe's settings, and the rule that each breaks
    stage: dict[str, Any] = field(default_factory=dict)  # settings of a later stage of the recipe


BERT_CHANGES = [
    (SHARES, "80/10/10"),
    (KEPT, "80/10/10"),
    ({"replace_by": "span"}, "per token"),
    ({"random_ids": "ordinary"}, "random tokens"),
    (FROM_TEXT, "random tokens"),
    ({"mask_special": True}, "no special"),
    ({"masking": "words"}, "one by one"),
]
ERNIE_RULES = BERT_REPLACEMENT | ORDINARY | {"no special": no_special}
ERNIE_CHANGES = [
    (SHARES, "80/10/10"),
    ({"random_ids": "vocabulary"}, "random tokens"),
    ({"mask_special": True}, "no special"),
    ({"replace_by": "span"}, "per token"),
]
CASES = {
    "bert": Case(
        "bert_base",
        9_500,
        {"count": partial(rounded, 0.15, 20), **BERT_REPLACEMENT, **ALL_IDS, **ONE_BY_ONE},
        [
            ({"mask_probability": 0.16}, "count"),
            ({"max_predictions": 18}, "count"),
            ({"mask_count": "random_round"}, "count"),
            *BERT_CHANGES,
        ],
    ),
    "bert, long rows": Case(
        "bert_base", 2_800, {"count": partial(rounded, 0.15, 77), **ONE_BY_ONE}, [], {"sequence_length": 512}
    ),
    "albert": Case(
        "albert",
        2_800,
        {
            "count": partial(at_most_rounded, 0.15, 20),
            "whole words": partial(whole, continues_word),
            "lengths": ngram_lengths,
            **BERT_REPLACEMENT,
            **ALL_IDS,
        },
        [
            ({"max_predictions": 24}, "count"),
            ({"masking": "tokens", "ngram_shares": ()}, "whole words"),
            ({"masking": "words", "ngram_shares": ()}, "lengths"),
            ({"ngram_shares": (0.4, 0.3, 0.3)}, "lengths"),
            ({"ngram_shares": (0.6, 0.4)}, "lengths"),
            ({"replace_by": "span"}, "per token"),
            (SHARES, "80/10/10"),
            ({"random_ids": "ordinary"}, "random tokens"),
        ],
    ),
    "roberta": Case(
        "roberta",
        2_200,
        {
            "count": partial(randomly_rounded, 0.15),
            "special": special_as_others,
            "one by one": partial(neighbours, True),
            **BERT_REPLACEMENT,
            **ORDINARY,
        },
        [
            ({"mask_count": "round"}, "count"),
            ({"mask_probability": 0.149}, "count"),
            ({"mask_special": False}, "special"),
            ({"masking": "words"}, "one by one"),
            ({"random_ids": "vocabulary"}, "random tokens"),
            (FROM_TEXT, "random tokens"),
            ({"replace_by": "span"}, "per token"),
            (KEPT, "80/10/10"),
        ],
    ),
    "electra": Case(
        "electra",
        9_500,
        {
            "count": partial(rounded, 0.15, 19),
            "85/15/0": partial(shares, 0.85, 0.15, 0.0),
            "per token": partial(each_replaced_by_itself, 0.15),
            "no special": no_special,
            **ONE_BY_ONE,
        },
        [
            ({"max_predictions": 18}, "count"),
            ({"keep_share": 0.1}, "85/15/0"),
            ({"random_share": 0.01}, "85/15/0"),
            ({"replace_by": "span"}, "per token"),
            ({"mask_special": True}, "no special"),
            ({"masking": "words"}, "one by one"),
        ],
    ),
    "ernie, characters": Case(
        "ernie",
        2_800,
        {"count": partial(each_with, 0.15), **ONE_BY_ONE, **ERNIE_RULES},
        [({"mask_count": "round"}, "count"), ({"masking": "words"}, "one by one"), *ERNIE_CHANGES],
    ),
    "ernie, words": Case(
        "ernie",
        2_800,
        {
            "whole words": partial(whole, continues_word),
            "units": partial(each_unit_with, 0.15, continues_word),
            **ERNIE_RULES,
        },
        [({"masking": "tokens"}, "whole words"), ({"masking": "entities"}, "units"), *ERNIE_CHANGES],
        {"masking": "words"},
    ),
    "ernie, entities": Case(
        "ernie",
        2_800,
        {
            "whole entities": partial(whole, continues_entity),
            "units": partial(each_unit_with, 0.15, continues_entity),
            **ERNIE_RULES,
        },
        [
            ({"masking": "tokens"}, "whole entities"),
            ({"masking": "words"}, "whole entities"),
            ({"mask_probability": 0.14}, "units"),
            *ERNIE_CHANGES,
        ],
        {"masking": "entities"},
    ),
    "modernbert": Case(
        "modernbert",
        1_100,
        {"count": partial(each_with, 0.3), **BERT_REPLACEMENT, **ALL_IDS, **ONE_BY_ONE},
        [({"mask_count": "round"}, "count"), ({"mask_probability": 0.295}, "count"), *BERT_CHANGES],
    ),
}
LEFT_OUT = [(name, left_out, rule) for name, case in CASES.items() for left_out, rule in case.left_out]
# Tests that are not long cover each rule once.
SEEN = [*{cell[2]: cell for cell in LEFT_OUT}.values()]


@cache
def load_case(name: str) -> tuple[Config, DataConfig]:
    """A recipe, and the data config of one of its stages, changed to need no files."""
    config, stage = load_recipe(CASES[name].recipe), CASES[name].stage
    stages = [one for one in config.stages if all(getattr(one, key) == value for key, value in stage.items())]
    assert not stage or stages, f"{name}: the recipe has no such stage"
    if stage:
        settings = {key: getattr(stages[0], key) for key in ("sequence_length", "max_predictions", "masking")}
        config = replace(config, data=replace(config.data, **{key: value for key, value in settings.items() if value}))
    units = "spans:entities" if config.data.units else ""
    return config, replace(config.data, sources=(), segmenter="none", units=units)


def masked_rows(name: str, count: int, **left_out: Any) -> Masked:
    """Rows of a recipe with changed settings, and the same rows without masks."""
    config, data = load_case(name)

    def make_rows(**changes: Any) -> dict[str, np.ndarray]:
        objectives, template = config.training.objectives, get_family(config.model.family).template
        data_config = replace(data, **changes)
        batches = RowBatches(SPLIT, SPECIALS, data_config, 1, objectives=objectives, template=template)
        return batches.rows(np.arange(count))

    batch, plain = make_rows(**left_out), make_rows(keep_share=1.0, random_share=0.0)
    hidden = np.zeros(batch["input_ids"].shape, bool)
    rows, slots = np.nonzero(batch["mlm_weights"])
    hidden[rows, batch["mlm_positions"][rows, slots]] = True
    ids, real = batch["sequence_ids"].astype(np.int64), batch["sequence_ids"] > 0
    last = ids.max(axis=1)
    sequence = np.where(real, ids - 1 + (np.cumsum(last) - last)[:, None], -1)
    assert (batch["mlm_labels"][rows, slots] == plain["input_ids"][hidden]).all()
    assert (batch["input_ids"][~hidden] == plain["input_ids"][~hidden]).all()
    return Masked(plain["input_ids"], batch["input_ids"], hidden, sequence)


def broken(name: str, masked: Masked) -> list[str]:
    """The names of the rules that masks violate."""
    return [rule for rule, holds in CASES[name].rules.items() if not holds(masked)]


@pytest.mark.parametrize("name", CASES)
def test_recipe_masks_follow_every_published_rule(name: str) -> None:
    masked = masked_rows(name, CASES[name].rows)
    assert (masked.sequence >= 0).sum() > 10**6
    assert broken(name, masked) == []


@pytest.mark.parametrize(("name", "left_out", "rule"), long_unless(lambda *cell: cell in SEEN, LEFT_OUT), ids=str)
def test_missing_rule_is_detected(name: str, left_out: dict[str, Any], rule: str) -> None:
    masked = masked_rows(name, CASES[name].rows // 2, **left_out)
    assert rule in broken(name, masked)


def broken_order(objectives: tuple[str, ...], count: int) -> list[str]:
    """The rules of ALBERT's sentence pairs that pairs of these objectives violate."""
    _, data = load_case("albert")
    pairs = RowBatches(SPLIT, SPECIALS, data, 1, objectives=objectives).pairs(np.arange(count))
    a, b = pairs.first.T
    homes = np.searchsorted(SPLIT.document_offsets, pairs.first, side="right")
    is_random = homes[:, 0] != homes[:, 1]
    exchanged, in_order = ~is_random & (a == b + pairs.count[:, 1]), ~is_random & (b == a + pairs.count[:, 0])
    together, both = np.count_nonzero(~is_random), np.count_nonzero(~is_random[1:] & ~is_random[:-1])
    rules = {
        "A and B are neighbours": bool((exchanged | in_order | is_random).all()),
        "half are exchanged": near(exchanged.sum(), together / 2, together / 4),
        "random where there is one sentence": bool((pairs.count[is_random, 0] == 1).all()),
        "labels": bool((pairs.labels == ~in_order).all()),
        # Exchanges are independent.
        "one by one": near((exchanged[1:] & exchanged[:-1]).sum(), both / 4, both * 5 / 16),
    }
    return [name for name, holds in rules.items() if not holds]


def test_albert_swaps_half_of_the_pairs() -> None:
    assert broken_order(load_case("albert")[0].training.objectives, 60_000) == []
    violations = broken_order(("mlm", "nsp"), 20_000)
    assert {"half are exchanged", "random where there is one sentence"} <= set(violations)
