"""The nearest words of a word: in the embedding table, with one vector per word, and in each of its contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.attention_patterns import WordTable
from bertjax.interpret.sample_text import SampleText, positions_of
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.run_directory import TrainedModel
from bertjax.text.similar_words import usable_ids
from bertjax.tokenization.tokenizer import Tokenizer

_LONGEST = 64  # tokens of a sentence that is shown
_FOUND_FOR_ONE = 16  # sentences found for each one shown, so that those shown are spread over the text


class Near(NamedTuple):
    """A nearest word, and the number of its sentence from 0; None for one of the table."""

    word: str
    cosine: float
    context: int | None = None


@dataclass(frozen=True)
class Context:
    """A sentence around a word."""

    before: str
    word: str
    after: str
    words: tuple[Near, ...]  # the nearest other words of all sentences, by their contextual vectors


@dataclass(frozen=True)
class Neighbors:
    """The nearest words. Cosines are taken after subtracting the mean of the vectors that are compared."""

    pieces: tuple[str, ...]
    table: tuple[Near, ...]  # nearest words of the vocabulary
    layer: int
    contexts: tuple[Context, ...]
    cosines: np.ndarray  # float32 [contexts, contexts]: of the word's vectors in them


def find_neighbors(
    model: TrainedModel, word: str, sample: SampleText, *, layer: int | None = None, contexts: int = 8, nearest: int = 8
) -> Neighbors:
    """Neighbours of a word's static vector (the mean of its pieces'), and of its vectors after a layer (the last one).

    Raises ValueError for a word that the vocabulary does not have, or a layer that the model does not have.
    """
    layers = model.config.model.num_hidden_layers
    layer = layers if layer is None else layer
    if not 0 <= layer <= layers:
        raise ValueError(f"--layer {layer}: the model has layers 1 to {layers}, and 0 for the embeddings")
    ids = np.array(usable_ids(model.tokenizer, [word])[0], np.int32)
    if not len(ids):
        raise ValueError(f"word {word!r}: the model's vocabulary has no tokens for it; give another word")
    rows = sample.containing(ids, contexts * _FOUND_FOR_ONE, min(_LONGEST, model.max_length))
    rows = [rows[i * len(rows) // contexts] for i in range(contexts)] if len(rows) > contexts else rows
    table = tuple(_in_table(WordTable(model), ids, model.tokenizer, nearest))
    pieces = tuple(model.tokenizer.shown[i] for i in ids)
    if not rows:
        return Neighbors(pieces, table, layer, (), np.zeros((0, 0), np.float32))
    vectors = _centred([inside.hidden[layer] for inside in look_inside(model, rows)])
    own = _of_the_word(ids, rows, vectors)
    return Neighbors(pieces, table, layer, tuple(_contexts(ids, rows, vectors, own, nearest)), _cosines(own, own))


def static_vectors(model: TrainedModel, words: Sequence[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Words and their vectors in the embedding table, the mean of their pieces': float32 [words, D].

    By default the words of letters that are one token, in the order of the vocabulary; of `words`, those that the
    vocabulary can write. Cosines between them are those of `find_neighbors`.
    """
    tokenizer, table = model.tokenizer, WordTable(model).vectors
    if words is None:
        surfaces = [surface.decode(errors="replace") for surface in tokenizer.surfaces]
        starts = np.flatnonzero(~tokenizer.is_continuation).tolist()
        numbers = {surfaces[number]: number for number in reversed(starts) if surfaces[number].isalpha()}
        ordered = sorted(numbers, key=numbers.__getitem__)
        return ordered, table[[numbers[word] for word in ordered]]
    pieces = [(word, ids) for word, ids in zip(words, usable_ids(tokenizer, words), strict=True) if ids]
    vectors = [table[list(ids)].mean(axis=0) for _, ids in pieces]
    return [word for word, _ in pieces], np.stack(vectors) if vectors else np.zeros((0, table.shape[1]), np.float32)


def _in_table(table: WordTable, ids: np.ndarray, tokenizer: Tokenizer, count: int) -> list[Near]:
    vector = table.vectors[ids].mean(axis=0)
    vector = vector / max(np.linalg.norm(vector), 1e-12)
    near = [i for i in table.nearest(vector[None], count + len(ids))[0].tolist() if i not in ids][:count]
    return [Near(tokenizer.shown[i], float(table.vectors[i] @ vector)) for i in near]


def _centred(vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    mean = np.concatenate(vectors).mean(axis=0)
    return [one - mean for one in vectors]


def _of_the_word(ids: np.ndarray, rows: Sequence[TokenRow], vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The word's vector at its first position in each row, the mean of its pieces': [rows, D]."""
    positions = [int(positions_of(ids, row)[0]) for row in rows]
    return np.stack([one[at : at + len(ids)].mean(axis=0) for one, at in zip(vectors, positions, strict=True)])


def _cosines(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    first, second = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (vectors, others))
    return first @ second.T


def _contexts(
    ids: np.ndarray, rows: Sequence[TokenRow], vectors: Sequence[np.ndarray], own: np.ndarray, nearest: int
) -> Iterator[Context]:
    """Each row with the other words of all rows that are nearest to the word in it, a word once."""
    positions = [np.flatnonzero(row.is_word & ~np.isin(row.ids, ids)) for row in rows]
    others = np.concatenate([one[at] for one, at in zip(vectors, positions, strict=True)])
    tokens = np.concatenate([row.ids[at] for row, at in zip(rows, positions, strict=True)])
    homes = np.repeat(np.arange(len(rows)), [len(at) for at in positions])
    for row, cosines in zip(rows, _cosines(own, others), strict=True):
        order = np.argsort(-cosines, kind="stable")
        first = order[np.sort(np.unique(tokens[order], return_index=True)[1])][:nearest]
        near = tuple(Near(row.tokenizer.shown[tokens[i]], float(cosines[i]), int(homes[i])) for i in first)
        at = int(positions_of(ids, row)[0])
        parts = row.ids[1:at], row.ids[at : at + len(ids)], row.ids[at + len(ids) : -1]
        before, word, after = (row.tokenizer.decode(part).strip() for part in parts)
        yield Context(before, word, after, near)
