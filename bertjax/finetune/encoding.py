"""Texts with labels to rows of tokens, for classification, regression, multiple choice and vectors.

A pair that is too long loses tokens from the end of the longer text until both are equally long, then of both in turn,
as in google-research/bert. Where an odd number of tokens is left for two long texts, `tokenizers` gives one more to the
text that was the longer (the second if they were equal), google-research/bert to the first. We follow `tokenizers`, as
everywhere in tokenization, for an exported model runs on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertjax.finetune.examples import TextExample
from bertjax.finetune.labels import label_numbers
from bertjax.finetune.lengths import RowCounts, too_long
from bertjax.finetune.rows import TaskRows
from bertjax.text.ragged import places_in
from bertjax.tokenization.tokenizer import Tokenizer

TextKind = Literal["sequence", "regression", "relevance", "choice", "vector"]

_NUMBERS = ("regression", "relevance")  # kinds whose labels are numbers

SHORTEST = 8  # tokens of a sequence, special ones included
_AT_ONCE = 1 << 14  # texts that are tokenized together; the tokenizer holds them cut into words


@dataclass(frozen=True)
class _Layout:
    """How a row is put together: what belongs to each of its k stretches, each of which a [SEP] ends."""

    text: np.ndarray  # int64 [k]: which of the example's texts it holds
    opens: np.ndarray  # bool [k]: begins a sequence, with [CLS]

    @property
    def sequences(self) -> np.ndarray:
        """int64 [k]: the sequence that each belongs to, from 0."""
        return np.cumsum(self.opens) - 1


def encode_texts(
    examples: Sequence[TextExample],
    kind: TextKind,
    labels: Sequence[str],
    tokenizer: Tokenizer,
    max_length: int,
    counts: RowCounts,
    *,
    strict: bool = False,
    label_weights: Sequence[float] | None = None,
) -> TaskRows:
    """Rows of examples, which are added to `counts`; a sequence has at most `max_length` tokens, special ones included.

    Every example has the same number of texts: one or two, the start and C ends for `choice` (C sequences a row), two
    for `vector` (two sequences). `labels` gives labels their numbers, for `choice` their places as texts, "0" and on;
    it is unused for the other kinds. `label_weights` are the labels' own, 1 by default. Raises ValueError naming the
    place of a label that is not one of `labels`, of another number of texts, and with `strict` of the first example
    that is too long.
    """
    if max_length < SHORTEST:
        raise ValueError(f"max length {max_length}: it must be at least {SHORTEST} tokens")
    texts = _texts_of(examples, kind, labels)
    layout = _layout(kind, texts)
    numbers = _numbers(examples, kind, labels)  # before the costly part
    ids, begin, sizes = _tokenized(examples, tokenizer)
    whole = sizes.reshape(len(examples), texts)[:, layout.text]
    kept = _kept(whole, layout, max_length)
    _count(counts, whole, kept)
    if strict and (kept < whole).any():
        first = int(np.flatnonzero((kept < whole).any(1))[0])
        raise too_long(examples[first].where, int(_lengths(whole[first : first + 1], layout).max()), max_length)
    begin = begin.reshape(len(examples), texts)[:, layout.text]
    tokens, offsets, cls_positions = _laid_out(ids, begin, kept, layout, tokenizer)
    rows = {"cls_positions": cls_positions} | _labelled(numbers, kind, label_weights)
    if kind == "vector":
        rows["texts"] = _numbered(examples)
    return TaskRows(offsets, tokens, rows)


def _texts_of(examples: Sequence[TextExample], kind: TextKind, labels: Sequence[str]) -> int:
    """How many texts every example has. Raises ValueError naming the first that has not as many."""
    if not examples:
        raise ValueError("no examples to encode")
    texts = {"choice": 1 + len(labels), "vector": 2}.get(kind, min(len(examples[0].texts), 2))
    for example in examples:
        if len(example.texts) != texts:
            start, what = (1, "choices") if kind == "choice" else (0, "texts")
            raise ValueError(
                f"{example.where}: {len(example.texts) - start} {what}, and there must be {texts - start} for every "
                "example; mend it"
            )
    return texts


def _layout(kind: TextKind, texts: int) -> _Layout:
    if kind == "choice":
        ends = np.arange(1, texts)
        return _Layout(np.stack([np.zeros_like(ends), ends], 1).ravel(), np.tile([True, False], len(ends)))
    return _Layout(np.arange(texts), np.array([kind == "vector" or place == 0 for place in range(texts)]))


def _numbers(examples: Sequence[TextExample], kind: TextKind, labels: Sequence[str]) -> np.ndarray:
    """int32 [n], -1 where there is none; of regression float32, NaN where there is none; of vectors zeros."""
    if kind in _NUMBERS:
        return np.array([np.nan if example.label is None else example.label for example in examples], np.float32)
    if kind == "vector":
        return np.zeros(len(examples), np.int32)
    return label_numbers(examples, labels)


def _labelled(numbers: np.ndarray, kind: TextKind, label_weights: Sequence[float] | None) -> dict[str, np.ndarray]:
    has = ~np.isnan(numbers) if kind in _NUMBERS else numbers >= 0
    known = np.where(has, numbers, 0).astype(numbers.dtype)
    weights = has.astype(np.float32)
    if label_weights is not None:
        assert kind in ("sequence", "choice"), "only classes have weights"
        weights *= np.asarray(label_weights, np.float32)[known]
    if kind == "vector":
        return {"label_weights": weights}
    if kind == "choice":
        return {"labels": known, "label_weights": weights}
    return {"labels": known[:, None], "label_weights": weights[:, None]}


def _numbered(examples: Sequence[TextExample]) -> np.ndarray:
    """int32 [n, texts]: the same number for the same text, be it in whichever place."""
    known: dict[str, int] = {}
    return np.array([[known.setdefault(text, len(known)) for text in one.texts] for one in examples], np.int32)


def _tokenized(examples: Sequence[TextExample], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids int32 of all texts, int64 where each begins, int64 how long it is), each text of an example in order."""
    texts = [text for example in examples for text in example.texts]
    parts = [tokenizer.encode(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
    sizes = np.concatenate([sizes for _, sizes in parts])
    return np.concatenate([ids for ids, _ in parts]).astype(np.int32), np.cumsum(sizes) - sizes, sizes


def _kept(sizes: np.ndarray, layout: _Layout, max_length: int) -> np.ndarray:
    """How many tokens of each stretch stay, int64 [n, k]: longest first where a sequence has two."""
    if layout.opens.all():
        return np.minimum(sizes, max_length - 2)
    a, b = sizes[:, 0::2], sizes[:, 1::2]
    room = max_length - 3
    shorter = np.minimum(np.minimum(a, b), room // 2)
    a_kept = np.where(a <= b, shorter, room - shorter)
    fits = a + b <= room
    a_kept = np.where(fits, a, a_kept)
    return np.stack([a_kept, np.where(fits, b, room - a_kept)], 2).reshape(sizes.shape)


def _lengths(kept: np.ndarray, layout: _Layout) -> np.ndarray:
    """Tokens of each sequence, special ones included: int64 [n, sequences]."""
    return np.add.reduceat(kept + layout.opens + 1, np.flatnonzero(layout.opens), axis=1)


def _count(counts: RowCounts, whole: np.ndarray, kept: np.ndarray) -> None:
    cut = (whole - kept).sum(1)
    counts.examples += len(whole)
    counts.empty += int((whole == 0).any(1).sum())
    counts.tokens += int(whole.sum())
    counts.truncated += int((cut > 0).sum())
    counts.tokens_cut += int(cut.sum())


def _laid_out(
    ids: np.ndarray, begin: np.ndarray, kept: np.ndarray, layout: _Layout, tokenizer: Tokenizer
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """(flat tokens, offsets of rows, [CLS] positions) of the stretches [n, k] of each row."""
    sizes = (kept + layout.opens + 1).ravel()
    ends = np.cumsum(sizes)
    starts = ends - sizes
    opens = np.tile(layout.opens, len(kept))
    is_text = np.ones(ends[-1], bool)
    input_ids = np.full(ends[-1], tokenizer.sep_id, np.int32)
    is_text[ends - 1] = False
    input_ids[starts[opens]] = tokenizer.cls_id
    is_text[starts[opens]] = False
    input_ids[is_text] = ids[places_in(begin.ravel(), kept.ravel())]
    offsets = np.append(0, ends[len(layout.text) - 1 :: len(layout.text)])
    cls_positions = starts.reshape(kept.shape)[:, layout.opens] - offsets[:-1, None]
    tokens = {
        "input_ids": input_ids,
        "token_type_ids": np.repeat(~opens, sizes).astype(np.int32),
        "sequence_ids": np.repeat(np.tile(layout.sequences + 1, len(kept)), sizes).astype(np.int32),
    }
    return tokens, offsets, cls_positions.astype(np.int32)
