"""The characters of a text that each of its tokens stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tokenizers

from bertjax.tokenization.tokenizer import Tokenizer

_AT_ONCE = 1024  # texts


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each text, ids int32 [tokens] as `encode` gives them, and int32 [tokens, 2]: first character, one behind last.

    White space before a word is not its token's. Raises ValueError for a NUL character, which `encode` drops.
    """
    if broken := next((text for text in texts if "\0" in text), None):
        raise ValueError(f"a text has a NUL character, {broken[:40]!r}; remove it")
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    backend.encode_special_tokens = True  # as plain text: a context cannot forge a [SEP]
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        ours = tokenizer.encode_sentences(some)
        theirs = backend.encode_batch(some, add_special_tokens=False)
        for text, ids, found in zip(some, ours, theirs, strict=True):
            assert ids.tolist() == found.ids, text
            spans = np.array(found.offsets, np.int32).reshape(-1, 2)
            yield ids.astype(np.int32), _without_space(text, spans)


def _without_space(text: str, spans: np.ndarray) -> np.ndarray:
    begins = np.array([*map(str.isspace, text)], bool)[spans[:, 0]] if len(spans) else np.zeros(0, bool)
    for token in np.flatnonzero(begins & (spans[:, 0] < spans[:, 1])):
        start, end = spans[token]
        spans[token, 0] = end - len(text[start:end].lstrip())
    return spans
