"""Where sentences end."""

from __future__ import annotations

import re

SENTENCE_CAP = 10_000  # characters

_END = re.compile(r"(?<=[.!?])\s+")


def split_sentences(text: str) -> list[str]:
    """Split a text into its sentences: stripped, never empty; a newline always ends one."""
    return [
        piece
        for line in text.splitlines()
        for sentence in _END.split(line)
        for piece in cut_at_spaces(sentence.strip())
        if piece
    ]


def cut_at_spaces(text: str, cap: int = SENTENCE_CAP) -> list[str]:
    """Cut a text into pieces of at most `cap` characters, at spaces where there are any."""
    pieces = []
    while len(text) > cap:
        end = text.rfind(" ", 0, cap) + 1 or cap
        pieces.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*pieces, text]
