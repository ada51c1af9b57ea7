"""Overlap of evaluation texts with the training text: the contamination measures of the GPT-3 and PaLM reports.

Both count runs of tokens. GPT-3 (Brown et al. 2020, appendix C) calls a text contaminated if any run of 13 is in the
training text, PaLM (Chowdhery et al. 2022, section 8) if 70 % of its runs of 8 are. Their tokens are words, ours word
pieces, so that our runs are somewhat shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.inspect.corpus_figures import Count
from bertjax.inspect.evaluation_texts import EvaluationTexts
from bertjax.inspect.near_duplicates import NGrams
from bertjax.inspect.stretches import stretches
from bertjax.text.store.format import SplitView

_LEAST_BITS, _MOST_BITS = 16, 27


@dataclass(frozen=True)
class Measure:
    """A measure of contamination."""

    name: str
    n: int  # tokens of a run
    least_share: float  # of a text's runs in the training text; 0: any run


MEASURES = (Measure("GPT-3", 13, 0.0), Measure("PaLM", 8, 0.7))


@dataclass(frozen=True)
class Contaminated:
    """The result of one measure on one set of texts."""

    measure: Measure
    texts: int  # long enough to have a run
    flagged: int
    runs: int
    seen: int  # runs that are in the training text
    worst: tuple[tuple[int, float], ...]  # (number, share) of the flagged texts with most of their runs seen


@dataclass(frozen=True)
class Overlap:
    """The results of all measures on one set of texts."""

    texts: EvaluationTexts
    by_measure: tuple[Contaminated, ...]


def find_overlaps(
    training: SplitView, evaluations: Sequence[EvaluationTexts], vocab_size: int, count: Count, examples: int
) -> tuple[Overlap, ...]:
    """Measure all evaluations, holding their runs in memory: the training text is read once per measure."""
    by_measure: list[list[Contaminated]] = [[] for _ in evaluations]
    for measure in MEASURES:
        runs = NGrams(measure.n, vocab_size)
        evaluation_runs = [runs(texts.ids, texts.segment_lengths) for texts in evaluations]
        index = RunIndex(np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in evaluation_runs)]))
        for stretch in stretches(training):
            index.mark(runs(stretch.ids, stretch.lengths)[0])
            count(len(stretch.ids))
        for results, texts, (hashes, counts) in zip(by_measure, evaluations, evaluation_runs, strict=True):
            text_numbers = np.repeat(texts.text_numbers, counts)
            results.append(_by_text(measure, text_numbers, index.is_marked(hashes), texts.texts, examples))
    return tuple(Overlap(texts, tuple(results)) for texts, results in zip(evaluations, by_measure, strict=True))


class RunIndex:
    """A set of 64-bit hashes that records which were seen: 9 bytes each, plus a table of up to 128 MiB."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._sorted = np.unique(hashes)
        self._met = np.zeros(len(self._sorted), bool)
        bits = min(max((16 * len(self._sorted)).bit_length(), _LEAST_BITS), _MOST_BITS)
        self._shift = np.uint64(64 - bits)
        # This lookup spares most hashes the binary search.
        self._maybe = np.zeros(1 << bits, bool)
        self._maybe[self._sorted >> self._shift] = True

    def mark(self, hashes: np.ndarray) -> None:
        """Record hashes as seen; those outside the set are ignored."""
        near = hashes[self._maybe[hashes >> self._shift]]
        if len(near):
            index = np.minimum(np.searchsorted(self._sorted, near), len(self._sorted) - 1)
            self._met[index[self._sorted[index] == near]] = True

    def is_marked(self, hashes: np.ndarray) -> np.ndarray:
        """Whether each hash of the set was seen: bool, in the shape of the argument."""
        return self._met[np.searchsorted(self._sorted, hashes)]


def _by_text(
    measure: Measure, text_numbers: np.ndarray, is_seen: np.ndarray, texts: int, examples: int
) -> Contaminated:
    runs = np.bincount(text_numbers, minlength=texts)
    seen = np.bincount(text_numbers[is_seen], minlength=texts)
    is_flagged = (seen > 0) & (seen >= measure.least_share * runs)
    share = np.where(is_flagged, seen / np.maximum(runs, 1), 0.0)
    worst = np.lexsort((-seen, -share))[:examples]
    return Contaminated(
        measure=measure,
        texts=int(np.count_nonzero(runs)),
        flagged=int(np.count_nonzero(is_flagged)),
        runs=int(runs.sum()),
        seen=int(seen.sum()),
        worst=tuple((int(text), float(share[text])) for text in worst if is_flagged[text]),
    )
