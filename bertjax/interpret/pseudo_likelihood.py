"""Pseudo-log-likelihoods of texts, and minimal pairs judged by them.

The score of a text is the sum of log p(token | other tokens) over its tokens without [CLS] and [SEP], each hidden in
turn (Salazar et al. 2020, "Masked Language Model Scoring", equation 1). The other pieces of a word make a token easy to
guess, so that long words score too high; Kauf and Ivanova (2023, "A Better Way to Do Masked Language Model Scoring")
also hide the pieces to its right (`word-l2r`), or the whole word (`whole-word`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.families.registry import get_family
from bertjax.finetune.data.tables import TABLE_SUFFIXES, Selection, read_rows, table_suffix
from bertjax.interpret.fill_mask import mlm_model
from bertjax.interpret.masked_tokens import MaskedToken, log_probabilities
from bertjax.interpret.token_rows import TokenRow, excerpt
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress, no_progress

_SORTED = 512  # texts whose rows are sorted by length together
_COLUMNS = ("sentence_good", "sentence_bad")  # of BLiMP's files

# (position of the scored token, word number of each token) -> the tokens to hide, bool [n].
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
    """Score each text; special tokens spelled out in a text are plain text. A generator is used if there is one.

    Raises ValueError for an unknown variant, for a text without tokens or longer than the rows of training, with its
    number from 1, and as `mlm_model` does.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant={variant!r} is unknown; choose from {', '.join(VARIANTS)}")
    model = mlm_model(model)
    rows = require_scored(model, texts)
    scores: list[PseudoLikelihood] = []
    for first in range(0, len(rows), _SORTED):
        part = rows[first : first + _SORTED]
        order = sorted(range(len(part)), key=lambda number: len(part[number]))
        answers = log_probabilities(model, itertools.chain(*(_hidden(part[n], variant) for n in order)))
        sums = {n: math.fsum(itertools.islice(answers, len(part[n]) - 2)) for n in order}
        scores += [PseudoLikelihood(sums[n], len(row) - 2) for n, row in enumerate(part)]
        progress("scoring texts", len(scores), len(rows))
    return scores


def require_scored(model: TrainedModel, texts: Sequence[str]) -> list[TokenRow]:
    """Make the rows of texts. Raises ValueError for a text without tokens or too long for the model."""
    template, longest = get_family(model.config.model.family).template, model.max_length
    rows = [TokenRow.of(model.tokenizer, [ids], template) for ids in model.tokenizer.encode_sentences(list(texts))]
    for number, (text, row) in enumerate(zip(texts, rows, strict=True), 1):
        start = repr(excerpt(text))
        if len(row) == 2:
            raise ValueError(f"text {number}, {start}, has no tokens and so no score; leave it out")
        if len(row) > longest:
            raise ValueError(
                f"text {number}, {start}, has {len(row)} tokens, special ones included; the model was trained on rows "
                f"of {longest} (data.sequence_length, stages.*.sequence_length); shorten it"
            )
    return rows


def _hidden(row: TokenRow, variant: str) -> Iterator[MaskedToken]:
    """Repeat the row for each of its tokens, with that token hidden."""
    for position in range(1, len(row) - 1):
        ids = np.where(VARIANTS[variant](position, row.word_numbers), row.tokenizer.mask_id, row.ids)
        yield MaskedToken(replace(row, ids=ids), position, int(row.ids[position]))


class MinimalPair(NamedTuple):
    """Two sentences that differ slightly; only the first is acceptable."""

    good: str
    bad: str


@dataclass(frozen=True)
class PairSet:
    """The pairs of a file, usually for one linguistic phenomenon."""

    name: str
    pairs: tuple[MinimalPair, ...]


@dataclass(frozen=True)
class Judgement:
    """The number of pairs in which the model gives the good sentence a higher score; a tie does not count."""

    name: str
    pairs: int
    right: int

    @property
    def accuracy(self) -> float:
        """The share of pairs judged correctly."""
        return self.right / self.pairs

    @property
    def standard_error(self) -> float:
        """The standard error of the accuracy, with the pairs as a sample: sqrt(p (1 - p) / n)."""
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.pairs)


def read_pair_sets(paths: Sequence[Path]) -> list[PairSet]:
    """Read the minimal pairs of files, and of every table in folders in the order of names, in BLiMP's format.

    Rows have the columns sentence_good and sentence_bad; other columns are ignored. Raises ValueError naming file and
    line of a missing or empty sentence, for a folder without tables, and for two files with sets of the same name.
    """
    files: list[Path] = []
    for path in paths:
        tables = [path]
        if path.is_dir():
            tables = sorted(file for file in path.iterdir() if table_suffix(file) in TABLE_SUFFIXES)
        if not tables:
            raise ValueError(f"{path}: no files of minimal pairs; name a folder of files such as pairs.jsonl")
        files += tables
    first: dict[str, Path] = {}
    for file in files:
        name = _set_name(file)
        if (other := first.setdefault(name, file)) is not file:
            raise ValueError(f"{other} and {file}: both are minimal pairs named {name!r}; rename one of the files")
    return [_read_pairs(file) for file in files]


def _set_name(path: Path) -> str:
    return path.name.partition(".")[0]


def _read_pairs(path: Path) -> PairSet:
    pairs = []
    for location, values in read_rows(path, Selection(_COLUMNS), print):
        for name in _COLUMNS:
            if not isinstance(values[name], str) or not values[name].strip():
                raise ValueError(f"{location}: {name} is {values[name]!r}; it must be a sentence")
        pairs.append(MinimalPair(*(values[name] for name in _COLUMNS)))
    return PairSet(_set_name(path), tuple(pairs))


def judge_pairs(
    model: TrainedModel, sets: Sequence[PairSet], variant: str = "original", progress: Progress = no_progress
) -> list[Judgement]:
    """Judge each set. Raises ValueError as `pseudo_likelihoods` does."""
    texts = [text for pair_set in sets for pair in pair_set.pairs for text in pair]
    scores = np.array([score.log_probability for score in pseudo_likelihoods(model, texts, variant, progress)])
    right = scores[::2] > scores[1::2]
    ends = itertools.accumulate(len(pair_set.pairs) for pair_set in sets)
    return [
        Judgement(pair_set.name, len(pair_set.pairs), int(right[end - len(pair_set.pairs) : end].sum()))
        for pair_set, end in zip(sets, ends, strict=True)
    ]
