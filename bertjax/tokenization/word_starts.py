"""Where words begin among pieces that are not marked as WordPiece's are: what whole-word masking goes by."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

# Scripts written without spaces between words: there every piece is taken as a word, as multilingual BERT does.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "HALFWIDTH KATAKANA", "YI ")
_UNSPACED_LEADS = range(0xE4, 0xEA)  # first bytes in UTF-8 of U+4000 to U+9FFF


def continuations(surfaces: Sequence[bytes], tokens: Sequence[str], mark: str) -> np.ndarray:
    """Which tokens go on with a word, bool [tokens]; one that is spelled with `mark` in front begins a word."""
    pairs = zip(surfaces, tokens, strict=True)
    return np.array([continues_word(surface, token.startswith(mark)) for surface, token in pairs])


def continues_word(surface: bytes, follows_space: bool) -> bool:
    """Whether a piece of text goes on with the word before it: it begins with a letter, a digit or a mark.

    `follows_space`: it is marked as the beginning of a word. Of a character that is cut in bytes, what does not begin
    it continues; what does is taken as the character.
    """
    if follows_space or not surface:
        return False
    first = surface.decode(errors="replace")[0]
    if first == "\ufffd":
        return surface[0] not in _UNSPACED_LEADS
    if unicodedata.name(first, "").startswith(_UNSPACED):
        return False
    return unicodedata.category(first)[0] in "LNM"
