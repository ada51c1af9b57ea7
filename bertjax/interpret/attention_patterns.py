"""The strength of six known attention patterns in each head (Vig 2019, "Deconstructing BERT").

A pattern gives each token its targets. Its strength in a head is the share of attention that tokens with targets give
to them, beyond uniform attention: (share - chance) / (1 - chance), which is 1 if they attend to nothing else and 0 for
uniform attention.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertjax.input.randomness import below, derive_key, hash64
from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.masked_tokens import MaskedToken, log_probabilities
from bertjax.interpret.token_rows import TokenRow
from bertjax.model.shared_tables import own_words
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.progress import Progress
from bertjax.tokenization.tokenizer import Tokenizer, is_unspaced

LEAST = math.log(1.1)  # nats: a word predicts another if hiding it lowers the probability by this factor or more
_REPORT_EVERY = 64  # questions


def predictive_words(
    model: TrainedModel, tokens: Sequence[tuple[TokenRow, int]], progress: Progress
) -> list[int | None]:
    """For each token (row, position), find the position of the word token that predicts it most, if there is one.

    Masking that token too lowers the first one's probability most ("perturbed masking", Wu et al. 2020, with the
    probability of the token as the measure), by a factor of 1.1 at least. The model must have been trained with masks.
    """
    order = sorted(range(len(tokens)), key=lambda number: len(tokens[number][0]))
    questions = [list(_masked(*tokens[number])) for number in order]
    total = sum(map(len, questions))
    answers = np.zeros(total)
    for number, log_probability in enumerate(log_probabilities(model, itertools.chain(*questions))):
        answers[number] = log_probability
        if (number + 1) % _REPORT_EVERY == 0 or number + 1 == total:
            progress("measuring predicting words", number + 1, total)
    predictors: list[int | None] = [None] * len(tokens)
    edges = np.cumsum([0, *map(len, questions)])
    for number, first, last in zip(order, edges, edges[1:], strict=False):
        alone, *with_another = answers[first:last]
        drops = alone - np.array(with_another)
        if len(drops) and drops.max() >= LEAST:
            predictors[number] = int(_others(*tokens[number])[drops.argmax()])
    return predictors


def _others(row: TokenRow, position: int) -> np.ndarray:
    return np.flatnonzero(row.is_word & (np.arange(len(row)) != position))


def _masked(row: TokenRow, position: int) -> Iterator[MaskedToken]:
    """The row with the token masked, and then with each other word token masked too."""
    for other in (None, *_others(row, position)):
        ids = row.ids.copy()
        ids[position] = row.tokenizer.mask_id
        if other is not None:
            ids[other] = row.tokenizer.mask_id
        yield MaskedToken(replace(row, ids=ids), position, int(row.ids[position]))


SHOWN_FROM = 0.05  # least strength at which a head counts as showing a pattern
RELATED = 10  # the nearest words of the vocabulary, by the model's word embeddings, are related to a word


@dataclass(frozen=True)
class Pattern:
    """One of the six patterns, with a description of its targets."""

    name: str
    looks_at: str


PATTERNS = (
    Pattern("next word", "the token after it in its sentence"),
    Pattern("previous word", "the token before it in its sentence"),
    Pattern("same or related word", "itself, the same word elsewhere in its sentence, or a related one there"),
    Pattern("same or related word in the other sentence", "the same word, or a related one, in the other sentence"),
    Pattern(
        "words that predict it",
        "the word that, masked with it, lowers the model's probability of it most (by a factor of 1.1 at least)",
    ),
    Pattern("separators", "[CLS] and the [SEP]s"),
)
NEXT, PREVIOUS, SAME, SAME_ACROSS, PREDICTIVE, SEPARATORS = range(len(PATTERNS))


class WordTable:
    """The model's word embeddings, centred on the mean word, from which related words follow."""

    def __init__(self, model: TrainedModel) -> None:
        table = np.asarray(own_words(model.params["encoder"]["embeddings"]))[: model.tokenizer.vocab_size]
        self.words = whole_words(model.tokenizer)
        centred = table - table[self.words].mean(axis=0)
        self.vectors = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        self._of_words = self.vectors[self.words]

    def nearest(self, vectors: np.ndarray, count: int) -> np.ndarray:
        """The ids of the nearest words of each vector, by cosine after subtracting the mean word."""
        cosines = vectors @ self._of_words.T
        count = min(count, len(self.words))
        first = np.sort(np.argpartition(-cosines, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(cosines, first, axis=1), axis=1, kind="stable")
        return self.words[np.take_along_axis(first, order, axis=1)]

    def related(self, row: TokenRow) -> np.ndarray:
        """Related tokens, bool [n, n]: the same word, or one of the other's `RELATED` nearest; each token is its own.

        Other pieces of the same occurrence of a word do not count.
        """
        nearest = self.nearest(self.vectors[row.ids], RELATED + 1)  # a word is its own nearest word
        is_near = (nearest[:, :, None] == row.ids).any(axis=1)
        texts = np.array(row.word_texts)
        apart = row.word_numbers[:, None] != row.word_numbers
        near = (is_near | is_near.T | (texts[:, None] == texts)) & apart
        return (near | np.eye(len(row), dtype=bool)) & row.is_word[:, None] & row.is_word


def whole_words(tokenizer: Tokenizer) -> np.ndarray:
    """The ids of tokens that are whole words of letters; single letters only in scripts without spaces."""
    texts = tokenizer.display_texts
    letters = [i for i in range(tokenizer.vocab_size) if texts[i].isalpha()]
    words = [i for i in letters if len(texts[i]) > 1 or is_unspaced(texts[i])]
    return np.array([i for i in words if not tokenizer.is_continuation[i]] or words or [0])


def targets(row: TokenRow, related: np.ndarray, predictors: dict[int, int | None]) -> np.ndarray:
    """The targets of each token under each pattern: bool [6, n, n], query x key.

    `predictors` maps measured tokens to the position of the predicting word, or None. [CLS] and [SEP] have no targets.
    """
    n = len(row)
    text = ~row.is_special
    within = text[:, None] & text & (row.segments[:, None] == row.segments)
    across = text[:, None] & text & (row.segments[:, None] != row.segments)
    target_mask = np.zeros((len(PATTERNS), n, n), bool)
    target_mask[NEXT] = within & np.eye(n, k=1, dtype=bool)
    target_mask[PREVIOUS] = within & np.eye(n, k=-1, dtype=bool)
    target_mask[SAME] = within & related
    target_mask[SAME_ACROSS] = across & related
    for position, predictor in predictors.items():
        if predictor is not None:
            target_mask[PREDICTIVE, position, predictor] = True
    target_mask[SEPARATORS] = text[:, None] & row.is_special
    return target_mask


class PatternSums:
    """Attention on the targets of the patterns, summed over the tokens with targets."""

    def __init__(self, layers: int, heads: int) -> None:
        self.tokens = np.zeros(len(PATTERNS), np.int64)  # with targets
        self._chance = np.zeros(len(PATTERNS))
        self._attended = np.zeros((len(PATTERNS), layers, heads))

    def add(self, attention: np.ndarray, target_mask: np.ndarray, seen: np.ndarray) -> None:
        """Count a row: attention [layers, H, n, n], targets bool [6, n, n], and the attention mask, bool [n, n]."""
        target_mask = target_mask & seen
        self.tokens += target_mask.any(axis=-1).sum(axis=-1)
        self._chance += (target_mask.sum(axis=-1) / seen.sum(axis=-1)).sum(axis=-1)
        self._attended += np.einsum("lhij,pij->plh", attention, target_mask, optimize=True)

    @property
    def shares(self) -> np.ndarray:
        """float64 [6, layers, H]: the mean share of a token's attention on its targets."""
        return self._attended / np.maximum(self.tokens, 1)[:, None, None]

    @property
    def chances(self) -> np.ndarray:
        """float64 [6]: the same for uniform attention."""
        return self._chance / np.maximum(self.tokens, 1)

    @property
    def strengths(self) -> np.ndarray:
        """float64 [6, layers, H]: shares beyond chance, at most 1; NaN for a pattern that no token could show."""
        chances = np.where(self.tokens > 0, self.chances, np.nan)[:, None, None]
        return (self.shares - chances) / (1 - chances)


def measure_patterns(
    model: TrainedModel, rows: Sequence[TokenRow], table: WordTable, fills_masks: bool, progress: Progress
) -> PatternSums:
    """Measure patterns on rows of sentences; predicting words for one drawn word of each row, if `fills_masks`."""
    drawn: dict[int, int] = {}  # number of a row -> position
    for number, row in enumerate(rows) if fills_masks else ():
        if len(words := np.flatnonzero(row.is_word)):
            key = derive_key(0, "word to predict")
            drawn[number] = int(words[below(hash64(key, np.array([number])), len(words))[0]])
    answers = predictive_words(model, [(rows[number], position) for number, position in drawn.items()], progress)
    predictors = {number: {position: answer} for (number, position), answer in zip(drawn.items(), answers, strict=True)}
    sums = PatternSums(model.config.model.num_hidden_layers, model.config.model.num_attention_heads)
    for number, (row, inside) in enumerate(zip(rows, look_inside(model, rows), strict=True)):
        sums.add(inside.attention, targets(row, table.related(row), predictors.get(number, {})), inside.seen)
        progress("reading attention", number + 1, len(rows))
    return sums
