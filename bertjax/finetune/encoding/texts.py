"""Texts of examples as rows of tokens, truncated where they are too long.

A pair that is too long loses tokens from the end of the longer text until both are equally long, then of both in turn,
as in google-research/bert. Where an odd number of tokens is left for two long texts, `tokenizers` gives one more to the
text that was the longer (the second if they were equal), google-research/bert to the first. We follow `tokenizers`, as
everywhere in tokenization, for an exported model runs on it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.encoding.rows import Segments, TaskRows, rows_of_segments, too_long
from bertjax.input.layout import BERT, Template
from bertjax.input.lengths import LengthCounts
from bertjax.tokenization.tokenizer import Tokenizer

SHORTEST = 8  # tokens of a sequence, special ones included
_AT_ONCE = 1 << 14  # texts that are tokenized together; the tokenizer holds them cut into words
_SPANS_AT_ONCE = 1024  # texts whose tokens are located together


def encode_texts(
    examples: Sequence[TextExample],
    segments: Segments,
    tokenizer: Tokenizer,
    max_length: int,
    counts: LengthCounts,
    *,
    template: Template = BERT,
    strict: bool = False,
) -> TaskRows:
    """Rows of examples that all have the same number of texts; `counts` is added to.

    A sequence has at most `max_length` tokens, special ones included. Raises ValueError with `strict`, naming the first
    example that is too long.
    """
    ids, begin, sizes = _tokenized(examples, tokenizer)
    whole, begin = (part.reshape(len(examples), -1)[:, segments.text] for part in (sizes, begin))
    kept = _kept(whole, segments, max_length, template)
    _count(counts, whole, kept)
    if strict and (kept < whole).any():
        first = int(np.flatnonzero((kept < whole).any(1))[0])
        length = int(segments.lengths(whole[first : first + 1], template).max())
        raise too_long(examples[first].where, length, max_length)
    return rows_of_segments(ids, begin, kept, segments.opens, tokenizer, template)


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each text, ids int32 [tokens] as `encode` gives them, and the characters of each token: int32 [tokens, 2].

    A span is the first character and the one after the last. White space before a word is not part of it; combining
    marks behind a token that normalization drops or composes are. Raises ValueError for a NUL character, which `encode`
    drops.
    """
    if broken := next((text for text in texts if "\0" in text), None):
        raise ValueError(f"a text has a NUL character, {broken[:40]!r}; remove it")
    for start in range(0, len(texts), _SPANS_AT_ONCE):
        some = texts[start : start + _SPANS_AT_ONCE]
        for text, ids in zip(some, tokenizer.encode_sentences(some), strict=True):
            spans = tokenizer.offsets(text).astype(np.int32)
            assert len(spans) == len(ids), text
            yield ids.astype(np.int32), _with_marks(text, _without_space(text, spans))


def _without_space(text: str, spans: np.ndarray) -> np.ndarray:
    begins = np.array([*map(str.isspace, text)], bool)[spans[:, 0]] if len(spans) else np.zeros(0, bool)
    for token in np.flatnonzero(begins & (spans[:, 0] < spans[:, 1])):
        start, end = spans[token]
        spans[token, 0] = end - len(text[start:end].lstrip())
    return spans


def _with_marks(text: str, spans: np.ndarray) -> np.ndarray:
    """Extend tokens over the marks that directly follow them and that no token covers."""
    if text.isascii() or not (marks := {place for place, letter in enumerate(text) if _is_mark(letter)}):
        return spans
    for start, end in spans.tolist():
        marks.difference_update(range(start, end))
    for token, end in enumerate(spans[:, 1].tolist()):
        while end in marks:
            end += 1
        spans[token, 1] = end
    return spans


def _is_mark(character: str) -> bool:
    """Whether a character only completes the one before it: an accent, a Hangul vowel or final, a kana voicing mark."""
    return character > "\u02ff" and (
        unicodedata.category(character).startswith("M")
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7fb"
        or character in "\uff9e\uff9f"
    )


def _tokenized(examples: Sequence[TextExample], tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids int32 of all texts, int64 where each begins, int64 how long it is), each text of an example in order."""
    texts = [text for example in examples for text in example.texts]
    parts = [tokenizer.encode(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
    sizes = np.concatenate([sizes for _, sizes in parts])
    return np.concatenate([ids for ids, _ in parts]).astype(np.int32), np.cumsum(sizes) - sizes, sizes


def _kept(sizes: np.ndarray, segments: Segments, max_length: int, template: Template) -> np.ndarray:
    """Number of tokens of each segment that stay, int64 [n, k]: the longest is cut first where a sequence has two."""
    if segments.opens.all():
        return np.minimum(sizes, max_length - template.of_text)
    a, b = sizes[:, 0::2], sizes[:, 1::2]
    room = max_length - template.of_pair
    shorter = np.minimum(np.minimum(a, b), room // 2)
    a_kept = np.where(a <= b, shorter, room - shorter)
    fits = a + b <= room
    a_kept = np.where(fits, a, a_kept)
    return np.stack([a_kept, np.where(fits, b, room - a_kept)], 2).reshape(sizes.shape)


def _count(counts: LengthCounts, whole: np.ndarray, kept: np.ndarray) -> None:
    cut = (whole - kept).sum(1)
    counts.examples += len(whole)
    counts.empty += int((whole == 0).any(1).sum())
    counts.tokens += int(whole.sum())
    counts.truncated += int((cut > 0).sum())
    counts.tokens_cut += int(cut.sum())
