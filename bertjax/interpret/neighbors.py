"""The nearest words of a word: in the embedding table, with one vector per word, and in each of its contexts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertjax.interpret.attention_maps import look_inside
from bertjax.interpret.attention_patterns import WordTable
from bertjax.interpret.sample_text import SampleText, word_positions
from bertjax.interpret.token_rows import TokenRow
from bertjax.run.run_directory import TrainedModel
from bertjax.text.similar_words import usable_ids

_NEAREST = 8  # words
_LONGEST = 64  # tokens of a displayed sentence
_CANDIDATES = 16  # sentences per displayed one, so that those are spread over the text


class Near(NamedTuple):
    """A nearest word."""

    word: str
    cosine: float
    context: int | None = None  # number of its sentence from 0; None for the embedding table


@dataclass(frozen=True)
class Context:
    """A sentence around a word."""

    before: str
    word: str
    after: str
    words: tuple[Near, ...]  # the nearest other words of all sentences, by contextual vectors


@dataclass(frozen=True)
class Neighbors:
    """The nearest words of a word. Cosines are computed after subtracting the mean of the compared vectors."""

    pieces: tuple[str, ...]
    table: tuple[Near, ...]  # nearest words of the vocabulary
    layer: int
    contexts: tuple[Context, ...]
    cosines: np.ndarray  # float32 [contexts, contexts]: between the word's vectors


def find_neighbors(
    model: TrainedModel, word: str, sample: SampleText, *, layer: int | None = None, contexts: int = 8
) -> Neighbors:
    """Find neighbours of a word's embedding (the mean of its pieces), and of its vectors after a layer (the last one).

    Raises ValueError for a word without tokens in the vocabulary, or a layer that the model lacks.
    """
    layers = model.config.model.num_hidden_layers
    layer = layers if layer is None else layer
    if not 0 <= layer <= layers:
        raise ValueError(f"--layer {layer}: the model has layers 1 to {layers}, and 0 for the embeddings")
    ids = np.array(usable_ids(model.tokenizer, [word])[0], np.int32)
    if not len(ids):
        raise ValueError(f"word {word!r}: the model's vocabulary has no tokens for it; give another word")
    rows = sample.containing(ids, contexts * _CANDIDATES, min(_LONGEST, model.max_length))
    rows = [rows[i * len(rows) // contexts] for i in range(contexts)] if len(rows) > contexts else rows
    table, texts = WordTable(model), model.tokenizer.display_texts
    vector = table.vectors[ids].mean(axis=0)
    vector = vector / max(np.linalg.norm(vector), 1e-12)
    near = [i for i in table.nearest(vector[None], _NEAREST + len(ids))[0].tolist() if i not in ids][:_NEAREST]
    static = tuple(Near(texts[i], float(table.vectors[i] @ vector)) for i in near)
    pieces = tuple(texts[i] for i in ids)
    if not rows:
        return Neighbors(pieces, static, layer, (), np.zeros((0, 0), np.float32))

    hidden = [inside.hidden[layer] for inside in look_inside(model, rows)]
    mean = np.concatenate(hidden).mean(axis=0)
    vectors = [states - mean for states in hidden]
    # The word at its first position in each row, [rows, D]
    starts = [int(word_positions(ids, row)[0]) for row in rows]
    own = np.stack(
        [row_vectors[at : at + len(ids)].mean(axis=0) for row_vectors, at in zip(vectors, starts, strict=True)]
    )
    return Neighbors(pieces, static, layer, tuple(_contexts(ids, rows, vectors, own)), _cosines(own, own))


def static_vectors(model: TrainedModel, words: Sequence[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Words and their embeddings, the mean of their pieces: float32 [words, D].

    By default all words of letters that are one token, in the order of the vocabulary; else those of `words` that the
    vocabulary can write. Their cosines equal those of `find_neighbors`.
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


def _cosines(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    first, second = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (vectors, others))
    return first @ second.T


def _contexts(
    ids: np.ndarray, rows: Sequence[TokenRow], vectors: Sequence[np.ndarray], own: np.ndarray
) -> Iterator[Context]:
    """Each row with the nearest other words of all rows, each word once."""
    positions = [np.flatnonzero(row.is_word & ~np.isin(row.ids, ids)) for row in rows]
    others = np.concatenate([row_vectors[at] for row_vectors, at in zip(vectors, positions, strict=True)])
    tokens = np.concatenate([row.ids[at] for row, at in zip(rows, positions, strict=True)])
    homes = np.repeat(np.arange(len(rows)), [len(at) for at in positions])
    for row, cosines in zip(rows, _cosines(own, others), strict=True):
        order = np.argsort(-cosines, kind="stable")
        first = order[np.sort(np.unique(tokens[order], return_index=True)[1])][:_NEAREST]
        near = tuple(Near(row.tokenizer.display_texts[tokens[i]], float(cosines[i]), int(homes[i])) for i in first)
        at = int(word_positions(ids, row)[0])
        parts = row.ids[1:at], row.ids[at : at + len(ids)], row.ids[at + len(ids) : -1]
        before, word, after = (row.tokenizer.decode(part).strip() for part in parts)
        yield Context(before, word, after, near)
