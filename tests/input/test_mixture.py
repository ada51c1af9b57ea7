"""Mixtures: each source has its share of every epoch, up to one document, and documents are read equally often."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import Config, DataConfig, StageConfig, load_recipe, validate
from bertjax.input.batches import RowBatches
from bertjax.input.epochs import Epochs
from bertjax.input.evaluation_sets import evaluation_sets
from bertjax.input.plan import build_plan
from bertjax.input.windows import mix_sources, token_shares
from bertjax.training.stages import make_stages

DATA = DataConfig(sequence_length=48, max_predictions=8)


@dataclass(frozen=True)
class MixedSplit(MemorySplit):
    """Documents of several sources; `sizes` is the number of documents in each."""

    sizes: tuple[int, ...] = ()

    @property
    def source_edges(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def source_tokens(self) -> np.ndarray:
        return np.diff(self.sentence_offsets[self.document_offsets[self.source_edges]])


def make_split(*sizes: int, seed: int = 2) -> MixedSplit:
    documents = random_documents(sum(sizes), seed=seed, sentences=6, tokens=9)
    return MixedSplit(documents, sizes=sizes, all_different=True)


def document_lengths(split: MemorySplit) -> np.ndarray:
    return np.diff(split.sentence_offsets[split.document_offsets])


@settings(max_examples=60, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.05, 10), min_size=4, max_size=4),
    epoch=st.integers(0, 50),
    seed=st.integers(0, 2**40),
)
def test_shares_are_exact_to_one_document(sizes: list[int], weights: list[float], epoch: int, seed: int) -> None:
    split = make_split(*sizes)
    tokens = document_lengths(split)
    edges = split.source_edges
    shares = token_shares([int(t.sum()) for t in np.split(tokens, edges[1:-1])], weights[: len(sizes)], 1.0)
    reading = mix_sources(edges, tokens, shares, seed, epoch)
    total = tokens.sum()
    for source, share in enumerate(shares):
        mine = (reading.document >= edges[source]) & (reading.document < edges[source + 1])
        longest = tokens[edges[source] : edges[source + 1]].max()
        assert abs(tokens[reading.document[mine]].sum() - share * total) <= longest + 1
    assert len(set(zip(reading.document.tolist(), reading.copy.tolist(), strict=True))) == len(reading)


def test_mixture_reads_documents_of_a_source_equally_often() -> None:
    split = make_split(20, 50)
    tokens, edges = document_lengths(split), split.source_edges
    counts: Counter[int] = Counter()
    copies: set[tuple[int, int]] = set()
    for epoch in range(30):
        reading = mix_sources(edges, tokens, np.array([0.7, 0.3]), 1, epoch)
        counts.update(reading.document.tolist())
        new_copies = set(zip(reading.document.tolist(), reading.copy.tolist(), strict=True))
        assert not new_copies & copies, "a copy is read twice in a run"
        copies |= new_copies
    for first, last in ((0, 20), (20, 70)):
        often = [counts[n] for n in range(first, last)]
        assert max(often) - min(often) <= 1
    assert counts[0] > 3 * counts[69]


def test_token_shares_smooth_like_multilingual_bert() -> None:
    shares = token_shares([1000, 10], (), 0.7)
    assert shares[0] / shares[1] == pytest.approx(100**0.7)
    assert shares.sum() == pytest.approx(1)
    np.testing.assert_allclose(token_shares([1000, 10], (), 1.0), [1000 / 1010, 10 / 1010])
    np.testing.assert_allclose(token_shares([1000, 10], (), 0.0), [0.5, 0.5])
    np.testing.assert_allclose(token_shares([5, 0, 5], (), 0.5), [0.5, 0, 0.5])
    with pytest.raises(ValueError, match="source 1 has no training documents; give it the weight 0"):
        token_shares([5, 0], (1.0, 1.0), 1.0)


def test_mmbert_stages_have_the_published_shares_and_masks() -> None:
    """With one source per language: 60, 110 and 1,833 languages, whose sizes follow Zipf's law."""
    names = tuple(f"text:{number}" for number in range(1_833))
    recipe = load_recipe("mmbert")
    data = replace(recipe.data, sources=names, active_sources=names[:60])
    second, third = recipe.stages
    phases = replace(second, active_sources=names[:110]), replace(third, active_sources=())
    stages = make_stages(validate(replace(recipe, data=data, stages=phases)))
    split = make_split(*(2 + 300 // (number + 1) for number in range(1_833)))
    sizes = split.source_tokens.astype(float)
    tokens = [
        (stage.stop - stage.start) * stage.training.global_batch_size * stage.data.sequence_length for stage in stages
    ]
    np.testing.assert_allclose(tokens, [2.3e12, 600e9, 100e9], rtol=3e-5)
    defined = ((60, 0.7, 0.30, 1_024), (110, 0.5, 0.15, 8_192), (1_833, 0.3, 0.05, 8_192))
    for stage, (languages, power, masks, length) in zip(stages, defined, strict=True):
        shares = np.where(np.arange(1_833) < languages, sizes**power, 0)
        shares /= shares.sum()
        assert (stage.data.mask_probability, stage.data.sequence_length) == (masks, length)
        epochs = Epochs(split, stage.data, stage.seed)
        np.testing.assert_allclose(epochs.shares, shares, rtol=1e-12)
        # An epoch reads each source's share, up to one document
        plan = epochs.get(1).plan
        starts, ends = (split.sentence_offsets[at] for at in (plan.start, plan.start + plan.count))
        home = np.searchsorted(split.document_offsets, plan.start, side="right") - 1
        source = np.searchsorted(split.source_edges, home, side="right") - 1
        tokens_read = np.bincount(source, ends - starts, minlength=1_833)
        longest = np.diff(split.sentence_offsets[split.document_offsets]).max()
        assert np.abs(tokens_read - shares * sizes.sum()).max() <= 2 * longest


def test_stage_inherits_sources_of_the_stage_before() -> None:
    names = ("text:a", "text:b", "text:c")
    data = replace(DATA, sources=names, rows="doc_sentences", temperature=0.7, active_sources=names[:2])
    stages = StageConfig(start=5, temperature=0.5, active_sources=()), StageConfig(start=9, temperature=0.3)
    split = make_split(60, 20, 9)
    phases = validate(Config(data=data, stages=stages)).stage_data
    for phase, power, active in zip(phases, (0.7, 0.5, 0.3), (2, 3, 3), strict=True):
        shares = np.where(np.arange(3) < active, split.source_tokens**power, 0)
        np.testing.assert_allclose(Epochs(split, phase, seed=1).shares, shares / shares.sum(), rtol=1e-12)


def test_random_b_is_never_a_copy_of_the_same_document() -> None:
    split = make_split(3, 40)
    tokens, edges = document_lengths(split), split.source_edges
    for epoch in range(5):
        reading = mix_sources(edges, tokens, np.array([0.95, 0.05]), 3, epoch)
        plan = build_plan(
            split.document_offsets, split.sentence_offsets, max_tokens=45, short_sequence_probability=0.1, seed=3,
            epoch=epoch, reading=reading,
        )  # fmt: skip
        home, other = (
            np.searchsorted(split.document_offsets, start, side="right") for start in (plan.a_start, plan.b_start)
        )
        assert ((home != other) == plan.is_random).all()
        # Copies of a document have their own draws.
        first_pairs = np.flatnonzero(home == 1)
        assert len(set(plan.b_start[first_pairs].tolist())) > 1


def test_sentences_are_used_once_per_reading() -> None:
    split = make_split(6, 30)
    reading = mix_sources(split.source_edges, document_lengths(split), np.array([0.8, 0.2]), 3, 0)
    plan = build_plan(
        split.document_offsets, split.sentence_offsets, max_tokens=45, short_sequence_probability=0.1, seed=3, epoch=0,
        reading=reading,
    )  # fmt: skip
    uses = np.zeros(len(split.sentence_offsets) - 1, int)
    for a, n, b, m, odd in zip(plan.a_start, plan.a_count, plan.b_start, plan.b_count, plan.is_random, strict=True):
        uses[a : a + n] += 1
        uses[b : b + (0 if odd else m)] += 1
    read = np.bincount(reading.document, minlength=36)
    for document, times in enumerate(read.tolist()):
        assert (uses[split.document_offsets[document] : split.document_offsets[document + 1]] == times).all()


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_mixture_batches_do_not_depend_on_host_or_history(packing: str) -> None:
    data = replace(DATA, weights=(3.0, 1.0), packing=packing)
    batches = RowBatches(make_split(12, 40), Specials(), data, 0)
    again = RowBatches(make_split(12, 40), Specials(), data, 0)
    for step in (0, 7, 40):
        whole = batches.batch(step, 8)
        half = again.batch(step, 8, slice(4, 8))
        assert all((half[key] == whole[key][4:]).all() for key in whole)


def test_mixture_of_one_document_is_refused() -> None:
    split = make_split(1, 5)
    with pytest.raises(ValueError, match=r"data.weights=\(1.0, 0.0\).*fewer than 2 documents"):
        RowBatches(split, Specials(), replace(DATA, weights=(1.0, 0.0)), 0)


def test_small_sources_share_a_held_out_set() -> None:
    assert evaluation_sets([5]) == {}
    assert evaluation_sets([0, 3]) == {"eval/source_0": [0], "eval/source_1": [1]}
    assert len(evaluation_sets([1] * 16)) == 16
    sets = evaluation_sets([n % 40 for n in range(1_833)])
    assert len(sets) == 16 and [*sets][-1] == "eval/small_sources"
    largest = [n for n in range(1_833) if n % 40 == 39][:15]
    assert [*sets.values()][:-1] == [[n] for n in largest]
    assert sorted(source for of in sets.values() for source in of) == [*range(1_833)]
