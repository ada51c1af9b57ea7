"""The interface of a rule that makes pairs of like meaning from plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bertjax.text.sentences import split_sentences

_LEAST_WORDS = 4  # of a sentence; a heading or a lone name says too little
_PASSAGE = 400  # characters: two to four sentences


@dataclass(frozen=True)
class Positive:
    """A rule. To add one, write such an object in its own file and a line in the registry."""

    name: str  # in `task.positives`
    pairs: Callable[[Sequence[str], int], Iterator[tuple[str, str]]]
    """Yield the pairs of a document, from its paragraphs and the document's number, which is the key of draws."""
    needs_dropout: bool = False  # both texts are equal, and only dropout makes their vectors differ


def sentences(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of four words or more. Text without spaces counts its characters as words."""
    for paragraph in paragraphs:
        for sentence in split_sentences(paragraph):
            if len(sentence.split()) >= _LEAST_WORDS or (not sentence.isascii() and len(sentence) > 2 * _LEAST_WORDS):
                yield sentence


def split_words(sentence: str) -> tuple[list[str], str]:
    """The words of a sentence, or the characters of one without spaces, and what joins them again."""
    words = sentence.split()
    return (words, " ") if len(words) > 1 else (list(sentence), "")


def passages(paragraphs: Sequence[str]) -> list[str]:
    """Successive passages of whole sentences, about 400 characters each; none reaches over a paragraph's end."""
    found: list[str] = []
    for paragraph in paragraphs:
        held: list[str] = []
        for sentence in split_sentences(paragraph):
            held.append(sentence)
            if sum(map(len, held)) >= _PASSAGE:
                found.append(" ".join(held))
                held = []
        if held:
            found.append(" ".join(held))
    return found
