"""Examples, as readers return them and encoders take them: texts with labels, as the files have them.

`where` names an example in messages: `FILE:LINE`, or `FILE: record N` where there are no lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TextExample:
    """One text, a pair, or for multiple choice the common start and its ends; label None where there is none."""

    where: str
    id: str  # as the submission format names it
    texts: tuple[str, ...]
    label: str | float | None  # a name; a number for regression; the index of the right end, from 0, for choices


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, each with its tag; None where there are none."""

    where: str
    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...] = ()  # line of each word in the file; empty where one record holds all words

    @property
    def file(self) -> Path:
        """The file that it was read from."""
        return Path(self.where.rpartition(":")[0])

    def where_of(self, word: int) -> str:
        """The line of a word, by its index from 0, for messages."""
        return f"{self.file}:{self.lines[word]}" if self.lines else self.where


@dataclass(frozen=True)
class Question:
    """A question about a text, and its answers: each with the character of the text where it begins."""

    where: str
    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool  # the text does not answer it
    article: str = ""  # the article that the text is part of
