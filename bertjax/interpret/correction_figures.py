"""Evaluation of correction: precision and recall of detected and corrected errors on pairs of texts.

Figures count words (Chinese: characters), as SIGHAN's bake-offs of Chinese spelling check do: an error is detected if
its word is replaced, and corrected if the first proposal is also the right word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.finetune.data.tables import Selection, read_rows
from bertjax.interpret.correction import Examined
from bertjax.tokenization.artefact import BERT_CHUNKS

_COLUMNS = ("id", "source", "target")  # of SIGHAN's sets as TSV


class ErrorPair(NamedTuple):
    """A text with errors and its correct form; both are equal if there is no error."""

    id: str
    source: str
    target: str


@dataclass(frozen=True)
class CorrectionFigures:
    """Numbers of words, and the figures that follow from them."""

    words: int
    errors: int
    replaced: int
    detected: int  # replaced and wrong
    corrected: int  # detected, and the first proposal is right

    def precision(self, hits: int) -> float:
        """Share of the replaced words; 0 if there are none."""
        return hits / self.replaced if self.replaced else 0.0

    def recall(self, hits: int) -> float:
        """Share of the errors; 0 if there are none."""
        return hits / self.errors if self.errors else 0.0

    def f1(self, hits: int) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * hits / (self.replaced + self.errors) if hits else 0.0

    def lines(self) -> list[str]:
        """A line for detection and one for correction, in %."""
        rows = (("detection", self.detected), ("correction", self.corrected))
        return [
            f"{name:10}  precision {self.precision(hits):6.1%}  recall {self.recall(hits):6.1%}"
            f"  F1 {self.f1(hits):6.1%}"
            for name, hits in rows
        ]


@dataclass(frozen=True)
class Judged:
    """Examined words and their correct forms; arrays have one item per word with a proposal."""

    ratios: np.ndarray  # float32: log ratio of the first proposal
    wrong: np.ndarray  # bool: the word is an error
    right: np.ndarray  # bool: the word is an error, and the first proposal corrects it
    words: int
    errors: int  # among all words, also those that cannot be examined

    def figures(self, threshold: float) -> CorrectionFigures:
        """Figures if the words with a log ratio above the threshold are replaced."""
        replaced = self.ratios > threshold
        detected, corrected = int(self.wrong[replaced].sum()), int(self.right[replaced].sum())
        return CorrectionFigures(self.words, self.errors, int(replaced.sum()), detected, corrected)

    def best_threshold(self) -> float:
        """The threshold with the highest F1 of correction, half-way between two log ratios; 0 if none corrects."""
        order = np.argsort(-self.ratios, kind="stable")
        ratios, right = self.ratios[order], np.cumsum(self.right[order])
        ends = np.append(np.flatnonzero(np.diff(ratios)), len(ratios) - 1)  # words of equal log ratio stay together
        if not len(ratios) or not right[-1]:
            return 0.0
        best = ends[(2 * right[ends] / (ends + 1 + self.errors)).argmax()]
        below = ratios[best + 1] if best + 1 < len(ratios) else ratios[best] - 1
        return float((ratios[best] + below) / 2)


def read_error_pairs(path: Path) -> list[ErrorPair]:
    """Read the rows of a TSV file: id, source, target; a heading with these names is skipped.

    Raises ValueError naming file and line of a row with another number of columns, and for an empty file.
    """
    rows = read_rows(path, Selection(_COLUMNS, header=_COLUMNS), print, suffix=".tsv")
    pairs = [ErrorPair(*(row.values[name] for name in _COLUMNS)) for row in rows]
    pairs = pairs[1:] if tuple(pairs[0]) == _COLUMNS else pairs
    if not pairs:
        raise ValueError(f"{path}: no rows; give an id, a source and a target sentence in each line, with tabs")
    return pairs


def judge(examined: Sequence[Examined], pairs: Sequence[ErrorPair], *, lowercase: bool) -> tuple[Judged, list[str]]:
    """Judge examined sources by their targets; also returns the ids of pairs with unequal numbers of words.

    With `lowercase`, case does not count as an error.
    """
    judged: list[tuple[float, bool, bool]] = []
    left_out, words, errors = [], 0, 0
    for text, pair in zip(examined, pairs, strict=True):
        source, target = (list(BERT_CHUNKS.finditer(side)) for side in (pair.source, pair.target))
        if len(source) != len(target):
            left_out.append(pair.id)
            continue

        def folded(text: str) -> str:
            return text.casefold() if lowercase else text

        wrong = [folded(ours[0]) != folded(theirs[0]) for ours, theirs in zip(source, target, strict=True)]
        words, errors = words + len(wrong), errors + sum(wrong)
        ends = np.array([match.end() for match in source])
        best: dict[int, tuple[float, bool, bool]] = {}
        for word in text.words:
            index = int(np.searchsorted(ends, word.start, side="right"))
            proposal, begin = word.proposals[0], source[index].start()
            whole = source[index][0]
            changed = whole[: word.start - begin] + proposal.text + whole[word.end - begin :]
            is_right = wrong[index] and folded(changed) == folded(target[index][0])
            best[index] = max(best.get(index, (-np.inf, False, False)), (proposal.log_ratio, wrong[index], is_right))
        judged += best.values()
    ratios, are_wrong, are_right = np.array(judged, float).reshape(-1, 3).T
    return Judged(ratios.astype(np.float32), are_wrong > 0, are_right > 0, words, errors), left_out
