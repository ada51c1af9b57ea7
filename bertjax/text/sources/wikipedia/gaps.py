"""Remove markup from wikitext inside out: replace it by a mark, then remove the mark and its traces.

The marks are control characters, which XML forbids, so no dump has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

GAP = "\x02"  # markup without visible text was here
BREAK = "\x03"  # a paragraph ends here
JOINT = "\x04"  # a tag was here; the characters beside it do not form markup together

_MARKS = re.compile(f"[{GAP}{BREAK}{JOINT}]")
_DEPTH = 40  # deepest nesting; MediaWiki gives up at 40 nested templates

_AFTER = frozenset(",.;:!?)]}»”’…%、。，．；：！？）」』】》〉”’،؛؟।")  # before these a gap leaves no space
_BEFORE = frozenset("([{«“‘（「『【《〈")  # and after these
_SPACED_GAP = re.compile(f" ?(?:{GAP} ?)+")
_AFTER_COMMA = re.compile(f"[,;、，；،؛] ?(?:{GAP} ?)+(?=[,;、，；،؛.。।])")
_PARENTHESES = re.compile(r"\([^()（）]*+\)|（[^()（）]*+）")
_PIECE = re.compile(r"[^,;，；、،؛]*+[,;，；、،؛]?")
_SEPARATORS = " ,;，；、،؛"


def without_marks(text: str) -> str:
    """Remove characters that could be mistaken for marks."""
    return _MARKS.sub("", text)


def replace_nested(text: str, balanced: re.Pattern[str], any_content: re.Pattern[str], by: Callable[..., str]) -> str:
    """Replace matches from the innermost outwards, in linear time at any depth.

    `balanced` matches a bracketed text without another one inside; `any_content`, tried once `balanced` finds nothing,
    also allows stray brackets. `by` gets the match and must not return its brackets.
    """
    for _ in range(_DEPTH):
        text, count = balanced.subn(by, text)
        if not count:
            text, count = any_content.subn(by, text)
            if not count:
                break
    return text


def close_gaps(text: str) -> str:
    """Remove the gaps of a single-spaced paragraph, with characters that make no sense without the removed text.

    These are a second space, a space before punctuation, a comma before another comma or a period, and in parentheses
    an otherwise empty piece between commas (`( GAP; born 1900)` becomes `(born 1900)`), or the parentheses themselves.
    """
    if GAP not in text:
        return text
    if "(" in text or "（" in text:
        text = _PARENTHESES.sub(_clean_parentheses, text)
    return _SPACED_GAP.sub(_close, _AFTER_COMMA.sub("", text))


def _clean_parentheses(match: re.Match[str]) -> str:
    whole = match[0]
    if GAP not in whole:
        return whole
    pieces = [piece for piece in _PIECE.findall(whole[1:-1]) if piece and not _is_hole(piece)]
    inside = "".join(pieces).strip(_SEPARATORS + GAP)
    return f"{whole[0]}{inside}{whole[-1]}" if any(map(str.isalnum, inside)) else GAP


def _is_hole(piece: str) -> bool:
    """Whether a piece between two commas is empty without its gaps, or only introduces one: `German: GAP`."""
    if GAP not in piece:
        return False
    rest = piece.replace(GAP, "").strip(_SEPARATORS)
    return rest.endswith((":", "：")) or not any(map(str.isalnum, rest))


def _close(match: re.Match[str]) -> str:
    start, end = match.span()
    text = match.string
    if end == len(text) or start == 0 or text[end] in _AFTER or text[start - 1] in _BEFORE:
        return ""
    return " " if " " in match[0] else ""
