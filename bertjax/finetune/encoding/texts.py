"""Texts as rows of tokens, truncated if they are too long.

A pair that is too long loses tokens from the end of the longer text until both are equally long, then from both in
turn, as in google-research/bert. If an odd number of tokens remains for two long texts, `tokenizers` gives the extra
one to the longer text (the second in a tie), google-research/bert to the first. We follow `tokenizers`, because
exported models run on it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.encoding.rows import Segments, TaskRows, join_segments, too_long
from bertjax.input.layout import BERT, Template
from bertjax.input.lengths import LengthCounts
from bertjax.tokenization.tokenizer import Tokenizer

SHORTEST = 8  # tokens of a sequence, special ones included
_AT_ONCE = 1 << 14  # texts tokenized together, which bounds the tokenizer's memory
_SPANS_AT_ONCE = 1024  # the same, with the spans of their tokens


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
    """Encode examples that all have the same number of texts, and add to `counts`.

    A sequence has at most `max_length` tokens, special ones included. Raises ValueError with `strict`, naming the first
    example that is too long.
    """
    texts = [text for example in examples for text in example.texts]
    parts = [tokenizer.encode(texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)]
    ids = np.concatenate([ids for ids, _ in parts]).astype(np.int32)
    lengths = np.concatenate([lengths for _, lengths in parts])
    begins = np.cumsum(lengths) - lengths
    whole, begin = (part.reshape(len(examples), -1)[:, segments.text] for part in (lengths, begins))
    sizes = _truncate(whole, segments, max_length, template)
    counts.add(whole.sum(1), (whole - sizes).sum(1))
    counts.empty += int((whole == 0).any(1).sum())
    if strict and (sizes < whole).any():
        first = int(np.flatnonzero((sizes < whole).any(1))[0])
        length = int(segments.lengths(whole[first : first + 1], template).max())
        raise too_long(examples[first].where, length, max_length)
    return join_segments(ids, begin, sizes, segments.opens, tokenizer, template)


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the ids of each text, int32 [tokens], and the characters of each token, int32 [tokens, 2].

    A span is [first, end). It excludes white space before a word, and includes following combining marks that
    normalization drops or composes. Raises ValueError for a NUL character, which `encode` would drop.
    """
    if broken := next((text for text in texts if "\0" in text), None):
        raise ValueError(f"a text has a NUL character: {broken[:40]!r}; remove it")
    for start in range(0, len(texts), _SPANS_AT_ONCE):
        some = texts[start : start + _SPANS_AT_ONCE]
        for text, ids in zip(some, tokenizer.encode_sentences(some), strict=True):
            spans = tokenizer.offsets(text).astype(np.int32)
            assert len(spans) == len(ids), text
            is_space = np.array([*map(str.isspace, text), False])
            for token in np.flatnonzero(is_space[spans[:, 0]]):
                start, end = spans[token]
                spans[token, 0] = end - len(text[start:end].lstrip())
            yield ids.astype(np.int32), _with_marks(text, spans)


def _with_marks(text: str, spans: np.ndarray) -> np.ndarray:
    """Extend the spans of tokens over directly following combining marks that no token covers."""
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
    """Whether a character completes the one before it: an accent, a Hangul vowel or final, a kana voicing mark."""
    return character > "\u02ff" and (
        unicodedata.category(character).startswith("M")
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7fb"
        or character in "\uff9e\uff9f"
    )


def _truncate(sizes: np.ndarray, segments: Segments, max_length: int, template: Template) -> np.ndarray:
    """Truncate the sizes of segments, int64 [n, k]; of two in a sequence the longer is cut first."""
    if segments.opens.all():
        return np.minimum(sizes, max_length - template.text_tokens)
    a, b = sizes[:, 0::2], sizes[:, 1::2]
    room = max_length - template.pair_tokens
    shorter = np.minimum(np.minimum(a, b), room // 2)
    fits = a + b <= room
    first = np.where(fits, a, np.where(a <= b, shorter, room - shorter))
    return np.stack([first, np.where(fits, b, room - first)], 2).reshape(sizes.shape)
