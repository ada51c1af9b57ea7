"""Pseudo-log-likelihoods of texts, and minimal pairs judged by them.

The score of a text is the sum over its tokens, [CLS] and [SEP] left out, of log p(token | the rest), each token hidden
in turn (Salazar et al. 2020, "Masked Language Model Scoring", equation 1). A token is easily guessed from the other
pieces of its word, so that long words score too high; Kauf and Ivanova (2023, "A Better Way to Do Masked Language Model
Scoring") hide the pieces to its right as well (`word-l2r`), or the whole word (`whole-word`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.families.registry import family_of
from bertjax.finetune.data.tables import TABLE_SUFFIXES, Wanted, read_rows, table_suffix
from bertjax.interpret.fill_mask import mlm_model
from bertjax.interpret.masked_tokens import MaskedToken, log_probabilities
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress, no_progress

_TOGETHER = 512  # texts whose rows are ordered by length
_SHOWN = 60  # characters of a text in a message
_COLUMNS = ("sentence_good", "sentence_bad")  # of BLiMP's files

# Which tokens are hidden to score one, bool [n]: of its position, and the number of each token's word.
VARIANTS: dict[str, Callable[[int, np.ndarray], np.ndarray]] = {
    "original": lambda position, words: np.arange(len(words)) == position,
    "word-l2r": lambda position, words: (words == words[position]) & (np.arange(len(words)) >= position),
    "whole-word": lambda position, words: words == words[position],
}


class PseudoLikelihood(NamedTuple):
    """The score of a text."""

    log_probability: float  # the sum over its tokens, nats
    tokens: int  # without special ones

    @property
    def per_token(self) -> float:
        """Nats per token."""
        return self.log_probability / self.tokens


def perplexity(scores: Sequence[PseudoLikelihood]) -> float:
    """The pseudo-perplexity of texts: exp(- mean over all tokens) (Salazar et al. 2020, section 2.3)."""
    total = math.fsum(score.log_probability for score in scores)
    return math.exp(-total / sum(score.tokens for score in scores))


def pseudo_likelihoods(
    model: TrainedModel, texts: Sequence[str], variant: str = "original", progress: Progress = no_progress
) -> list[PseudoLikelihood]:
    """The score of each text; special tokens that are spelled out in one are plain text.

    Raises ValueError for an unknown variant, for a text without tokens or with more than a row of training has, by its
    number from 1, and as `mlm_model` does. A generator is used if there is one.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is unknown; choose from {', '.join(VARIANTS)}")
    model = mlm_model(model)
    rows = require_scored(model, texts)
    found: list[PseudoLikelihood] = []
    for first in range(0, len(rows), _TOGETHER):
        part = rows[first : first + _TOGETHER]
        order = sorted(range(len(part)), key=lambda number: len(part[number]))
        answers = log_probabilities(model, itertools.chain(*(_hidden(part[n], variant) for n in order)))
        sums = {n: math.fsum(itertools.islice(answers, len(part[n]) - 2)) for n in order}
        found += [PseudoLikelihood(sums[n], len(row) - 2) for n, row in enumerate(part)]
        progress("scoring texts", len(found), len(rows))
    return found


def require_scored(model: TrainedModel, texts: Sequence[str]) -> list[TokenRow]:
    """The rows of texts. Raises ValueError for one without tokens, and for one that is too long for the model."""
    template, longest = family_of(model.config.model.family).template, model.max_length
    rows = [TokenRow.of(model.tokenizer, [ids], template) for ids in model.tokenizer.encode_sentences(list(texts))]
    for number, (text, row) in enumerate(zip(texts, rows, strict=True), 1):
        shown = repr(text[:_SHOWN] + ("..." if len(text) > _SHOWN else ""))
        if len(row) == 2:
            raise ValueError(f"text {number}, {shown}, has no tokens and so no score; leave it out")
        if len(row) > longest:
            raise ValueError(
                f"text {number}, {shown}, has {len(row)} tokens, special ones included; the model was trained on rows "
                f"of {longest} (data.sequence_length, stages.*.sequence_length); shorten it"
            )
    return rows


def _hidden(row: TokenRow, variant: str) -> Iterator[MaskedToken]:
    """The row once for each of its tokens, which is hidden."""
    for position in range(1, len(row) - 1):
        ids = np.where(VARIANTS[variant](position, row.word_numbers), row.tokenizer.mask_id, row.ids)
        yield MaskedToken(replace(row, ids=ids.astype(np.int32)), position, int(row.ids[position]))


class MinimalPair(NamedTuple):
    """Two sentences that differ in little, of which only the first is right."""

    good: str
    bad: str


@dataclass(frozen=True)
class PairSet:
    """The pairs of a file, for one phenomenon of a language as a rule."""

    name: str
    pairs: tuple[MinimalPair, ...]


@dataclass(frozen=True)
class Judgement:
    """How many pairs of a set a model judges rightly: the good sentence has a higher score. A tie is wrong."""

    name: str
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of pairs judged rightly."""
        return self.right / self.pairs

    @property
    def standard_error(self) -> float:
        """Of the accuracy, the pairs being a sample: sqrt(p (1 - p) / n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.pairs)


def read_pair_sets(paths: Sequence[Path], notify: Callable[[str], object] = print) -> list[PairSet]:
    """The minimal pairs of files, and of every table in folders, in the order of their names, as BLiMP has them.

    Rows have the columns sentence_good and sentence_bad; others are not read. Raises ValueError naming file and line
    for what is missing or is no text, for a folder without tables, and for two files that name their sets alike.
    """
    files = [file for path in paths for file in _files_of(path)]
    first: dict[str, Path] = {}
    for file in files:
        name = _set_name(file)
        if (other := first.setdefault(name, file)) is not file:
            raise ValueError(f"{other} and {file}: both are minimal pairs named {name!r}; rename one of the files")
    return [_read_pairs(file, notify) for file in files]


def _set_name(path: Path) -> str:
    return path.name.partition(".")[0]


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if table_suffix(file) in TABLE_SUFFIXES)
    if not files:
        raise ValueError(f"{path}: no file of minimal pairs in it; name a folder of files such as pairs.jsonl")
    return files


def _read_pairs(path: Path, notify: Callable[[str], object]) -> PairSet:
    pairs = []
    for where, values in read_rows(path, Wanted(_COLUMNS), notify):
        for name in _COLUMNS:
            if not isinstance(values[name], str) or not values[name].strip():
                raise ValueError(f"{where}: {name} is {values[name]!r}; it must be a sentence")
        pairs.append(MinimalPair(*(values[name] for name in _COLUMNS)))
    return PairSet(_set_name(path), tuple(pairs))


def judge_pairs(
    model: TrainedModel, sets: Sequence[PairSet], variant: str = "original", progress: Progress = no_progress
) -> list[Judgement]:
    """The judgement of each set. Raises ValueError as `pseudo_likelihoods` does."""
    texts = [text for one in sets for pair in one.pairs for text in pair]
    scores = np.array([score.log_probability for score in pseudo_likelihoods(model, texts, variant, progress)])
    right = scores[::2] > scores[1::2]
    ends = np.cumsum([len(one.pairs) for one in sets])
    return [
        Judgement(one.name, len(one.pairs), int(part.sum()))
        for one, part in zip(sets, np.split(right, ends[:-1]), strict=True)
    ]
