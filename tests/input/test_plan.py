"""An epoch's pairs follow the rules one by one, and match a reference implementation in distribution."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import MemorySplit, Specials, random_documents
from reference_pairs import PairRules, corpus_pairs
from scipy import stats

import bertjax.input.plan as plan_module
from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.epochs import PlanCache
from bertjax.input.plan import EpochPlan, build_plan

corpora = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=30), min_size=2, max_size=12)


def make_plan(split: MemorySplit, max_tokens: int, seed: int = 0, epoch: int = 0, short: float = 0.1) -> EpochPlan:
    return build_plan(
        split.document_offsets,
        split.sentence_offsets,
        max_tokens=max_tokens,
        short_sequence_probability=short,
        seed=seed,
        epoch=epoch,
    )


def grow(lengths: list[int], start: int, target: int) -> int:
    """End (exclusive) of the shortest run of sentences from `start` on with `target` tokens, or of the document."""
    tokens = 0
    for number in range(start, len(lengths)):
        tokens += lengths[number]
        if tokens >= target:
            return number + 1
    return len(lengths)


def targets_that_explain(plan: EpochPlan, split: MemorySplit, document: int, max_tokens: int) -> list[int]:
    """All target lengths under which every pair of the document follows the rules."""
    offsets = split.document_offsets
    first, last = offsets[document], offsets[document + 1]
    mine = np.flatnonzero((plan.a_start >= first) & (plan.a_start < last))
    mine = mine[np.argsort(plan.a_start[mine])]
    return [target for target in range(2, max_tokens + 1) if follows(plan, split, document, mine, target)]


def follows(plan: EpochPlan, split: MemorySplit, document: int, mine: np.ndarray, target: int) -> bool:
    offsets = split.document_offsets
    lengths = split.documents[document]
    position = 0
    for n in mine:
        a_count, b_count, b_start = int(plan.a_count[n]), int(plan.b_count[n]), int(plan.b_start[n])
        chunk_end = grow(lengths, position, target)
        in_chunk = chunk_end - position
        ok = plan.a_start[n] == offsets[document] + position and 1 <= a_count <= max(in_chunk - 1, 1)
        a_end = position + a_count
        if plan.is_random[n]:
            other = int(np.searchsorted(offsets, b_start, side="right")) - 1
            begin = b_start - int(offsets[other])
            room = max(target - sum(lengths[position:a_end]), 1)
            ok = ok and other != document and begin + b_count == grow(split.documents[other], begin, room)
            position = a_end
        else:
            ok = ok and in_chunk > 1 and b_start == offsets[document] + a_end and b_count == chunk_end - a_end
            position = chunk_end
        if not ok:
            return False
    return position == len(lengths)


@settings(max_examples=60, derandomize=True)
@given(corpora, st.integers(2, 60), st.integers(0, 5), st.integers(0, 3))
def test_every_pair_follows_the_rules(documents: list[list[int]], max_tokens: int, seed: int, epoch: int) -> None:
    split = MemorySplit(documents)
    plan = make_plan(split, max_tokens, seed, epoch, short=0.5)
    for number in range(len(documents)):
        assert targets_that_explain(plan, split, number, max_tokens), f"document {number} follows no target"


def test_fewer_than_half_of_the_pairs_follow_each_other() -> None:
    """B is always random for a chunk of one sentence."""
    plan = make_plan(MemorySplit(random_documents(400, seed=5)), 61)
    follow = (~plan.is_random).mean()
    error = 0.5 / np.sqrt(len(plan.is_random))
    assert 0.3 < follow < 0.5 - 5 * error
    alone = make_plan(MemorySplit([[9], [7], [8]]), 61)
    assert alone.is_random.all()


def test_targets_are_drawn_per_document() -> None:
    """Without short sequences, every document's target is the whole row; with them, a tenth have another target."""
    split = MemorySplit(random_documents(300, seed=1, sentences=20))
    plan = make_plan(split, 61, short=0.0)
    assert all(61 in targets_that_explain(plan, split, n, 61) for n in range(300))
    plan = make_plan(split, 61, short=0.1)
    short = sum(61 not in targets_that_explain(plan, split, n, 61) for n in range(300))
    assert 15 <= short <= 45


@settings(max_examples=40, derandomize=True)
@given(corpora, st.integers(2, 60), st.integers(1, 9))
def test_every_sentence_is_used(documents: list[list[int]], max_tokens: int, longest_walk: int) -> None:
    """Once, in A or in a B that follows, even if long documents are planned in pieces."""
    split = MemorySplit(documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_module, "LONGEST_WALK", longest_walk)
        plan = make_plan(split, max_tokens)
    uses = np.zeros(split.document_offsets[-1], int)
    for a_start, a_count, b_start, b_count, is_random in zip(*astuple(plan), strict=True):
        uses[a_start : a_start + a_count] += 1
        uses[b_start : b_start + (0 if is_random else b_count)] += 1
    assert uses.tolist() == [1] * len(uses)


def chunk_sizes(plan: EpochPlan, split: MemorySplit) -> list[list[int]]:
    """For each document, the number of sentences in each pair whose B follows A."""
    document = np.searchsorted(split.document_offsets, plan.a_start, side="right") - 1
    size = plan.a_count.astype(int) + plan.b_count
    return [size[(document == n) & ~plan.is_random].tolist() for n in range(len(split.documents))]


def test_short_targets_are_uniform() -> None:
    """Including both ends. With one-token sentences, a chunk has as many sentences as its target, except the last."""
    split = MemorySplit([[1] * 100] * 3000)
    targets = [max(sizes) for sizes in chunk_sizes(make_plan(split, 10, short=1.0), split)]
    assert sorted(set(targets)) == list(range(2, 11))
    assert stats.chisquare(np.bincount(targets)[2:]).pvalue > 0.01
    usual = [max(sizes) for sizes in chunk_sizes(make_plan(split, 10, short=0.0), split)]
    assert set(usual) == {10}


def test_pieces_of_a_document_are_one_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random B is never from another piece of the same document, and the pieces share one target length."""
    monkeypatch.setattr(plan_module, "LONGEST_WALK", 90)
    split = MemorySplit([[1] * 800, [1] * 3, [1] * 95])
    targets = set()
    for epoch in range(30):
        plan = make_plan(split, 20, epoch=epoch, short=0.5)
        document = np.searchsorted(split.document_offsets, plan.a_start, side="right")
        other = np.searchsorted(split.document_offsets, plan.b_start, side="right")
        assert ((document != other) == plan.is_random).all()
        sizes = np.array(chunk_sizes(plan, split)[0])
        assert np.count_nonzero(sizes != sizes.max()) <= 9  # at most the last chunk of each of the nine pieces
        targets.add(int(sizes.max()))
    assert len(targets) > 5


def test_plan_depends_only_on_seed_and_epoch() -> None:
    split = MemorySplit(random_documents(50, seed=2))
    one, again = make_plan(split, 61), make_plan(split, 61)
    assert all((a == b).all() for a, b in zip(astuple(one), astuple(again), strict=True))
    for other in (make_plan(split, 61, epoch=1), make_plan(split, 61, seed=1)):
        assert set(zip(*map(np.ndarray.tolist, astuple(one)), strict=True)) != set(
            zip(*map(np.ndarray.tolist, astuple(other)), strict=True)
        )
    assert [a.dtype for a in astuple(one)] == [np.int32, np.uint16, np.int32, np.uint16, np.bool_]


LENGTH = 64
EPOCHS = 100
BINS = np.array([0, 4, 8, 12, 16, 20, 24, 28, 30, 31, 32, 34, 38, 42, 46, 50, 54, 58, 60, 61, 62])


def totals(first: list[int], second: list[int], is_random: list[bool]) -> list[float]:
    """Sums over the rows of a pass that would reveal any difference between two implementations."""
    a, b, odd = np.array(first), np.array(second), np.array(is_random)
    sums = [len(a), odd.sum(), a.sum(), b.sum(), (a * b).sum(), a[odd].sum(), b[odd].sum(), (a + b == 61).sum()]
    return [*map(float, sums), *(h for x in (a, b, a + b, b[odd]) for h in np.histogram(x, BINS)[0].astype(float))]


def our_totals(documents: list[list[int]]) -> np.ndarray:
    """Features of whole plans, [EPOCHS, features]."""
    batches = RowBatches(MemorySplit(documents), Specials(), DataConfig(sequence_length=LENGTH), seed=5)
    features = []
    for epoch in range(EPOCHS):
        batches._epochs.rows = 10**9  # so that an epoch is exactly its plan
        size = len(batches._epochs.get(epoch))
        batch = batches.rows(epoch * 10**9 + np.arange(size))
        second = batch["token_type_ids"].sum(axis=1) - 1
        first = batch["sequence_ids"].sum(axis=1) - second - 3
        features.append(totals(first.tolist(), second.tolist(), batch["pair_labels"][:, 0].astype(bool).tolist()))
    return np.array(features)


def reference_totals(documents: list[list[int]], rules: PairRules, passes: int) -> np.ndarray:
    """Features of the reference implementation, [passes, features]."""
    rng = random.Random(11)
    texts = [[[9] * length for length in document] for document in documents]
    features = []
    for _ in range(passes):
        pairs = corpus_pairs(texts, rules, rng)
        first, second = [len(pair.first) for pair in pairs], [len(pair.second) for pair in pairs]
        features.append(totals(first, second, [pair.is_random for pair in pairs]))
    return np.array(features)


def smallest_pvalue(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The smallest p-value of Welch's test on each common feature; whole passes are independent, rows are not."""
    is_common = np.concatenate([ours, theirs]).mean(axis=0) > 2
    return float(stats.ttest_ind(ours[:, is_common], theirs[:, is_common], equal_var=False).pvalue.min())


def test_pairs_match_the_reference_in_distribution() -> None:
    """Compares the number of pairs, the share of IsNext, and lengths. The comparison detects a missing rule."""
    documents = random_documents(120, seed=3, sentences=8, tokens=14)
    rules = PairRules(LENGTH)
    ours = our_totals(documents)
    assert smallest_pvalue(ours, reference_totals(documents, rules, EPOCHS)) > 3e-4  # some 80 features
    for flawed in (replace(rules, put_back=False), replace(rules, short_sequences=False)):
        assert smallest_pvalue(ours, reference_totals(documents, flawed, passes=20)) < 1e-12


def test_plan_cache_builds_each_plan_once() -> None:
    built = []

    def build(epoch: int, ahead: bool) -> EpochPlan:
        built.append(epoch)
        time.sleep(0.05)
        return EpochPlan(*(np.zeros(epoch, np.int32) for _ in range(5)))  # as many pairs as the epoch's number

    cache = PlanCache()
    cache.plan_ahead(3, build)
    threads = [threading.Thread(target=cache.get, args=(epoch, build)) for epoch in (3, 4) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(built) == [3, 4]
    assert len(cache.get(4, build)) == 4
    cache.get(5, build)  # the cache holds two plans: evicts 3
    cache.get(4, build)
    assert sorted(built) == [3, 4, 5]
    cache.get(3, build)
    assert sorted(built) == [3, 3, 4, 5]


@pytest.mark.parametrize("in_background", [False, True])
def test_plan_cache_raises_errors_of_the_build(in_background: bool) -> None:
    def build(epoch: int, ahead: bool) -> EpochPlan:
        raise ValueError(f"damaged at {epoch}")

    cache = PlanCache()
    if in_background:
        cache.plan_ahead(7, build)
    with pytest.raises(ValueError, match="damaged at 7"):
        cache.get(7, build)
