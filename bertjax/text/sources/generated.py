"""The `generated` source: text made by rules, the same in every installation, to compare runs on different machines.

Each document has a topic with nouns of its own. A noun has a few adjectives and verbs, some more frequent than others:
a masked word can be guessed from its sentence, though not always, and a second sentence by the topic of the first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.source import Paragraphs, Source, SourceFile, SourceKind

_TOPICS, _NOUNS = 6, 4  # nouns of a topic
_SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu", "ve", "za")
_CHOICES = (0.5, 0.3, 0.2)  # how often a noun has each of its adjectives, and of its verbs
_LEAST, _MOST = 4, 11  # sentences of a document
_UNIT_DOCUMENTS = 10_000  # about 4 MB
_BYTES = 400  # of a document, about


class _Noun(NamedTuple):
    word: str
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]


def find(source: Source) -> list[SourceFile]:
    """Units of work of so many documents. Raises ValueError for a pattern that is no number of documents."""
    if not re.fullmatch(r"[1-9]\d{0,8}", source.pattern):
        raise ValueError(f"source {source}: {source.pattern!r} is no number of documents; write generated:2000")
    count = int(source.pattern)
    starts = range(0, count, _UNIT_DOCUMENTS)
    return [_unit(start, min(start + _UNIT_DOCUMENTS, count)) for start in starts]


def _unit(start: int, end: int) -> SourceFile:
    """Documents [start, end); its digest is that of this file, which has the rules."""
    return SourceFile("generated", f"{start}-{end}", (__file__,), listed=(end - start) * _BYTES)


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """The sentences of the documents of a unit. Document k is a function of k alone."""
    topics = _topics()
    for number in range(*map(int, file.path.split("-"))):
        draw = Random(f"document {number}")
        nouns = topics[_below(draw, _TOPICS)]
        for _ in range(_LEAST + _below(draw, _MOST - _LEAST + 1)):
            yield _sentence(nouns, draw)
        yield None


def _topics() -> list[list[_Noun]]:
    """The nouns of each topic; no word is used twice."""
    draw = Random("words")
    words = iter(
        sorted(("".join(parts) for parts in itertools.product(_SYLLABLES, repeat=3)), key=lambda _: draw.random())
    )

    def some() -> tuple[str, ...]:
        return tuple(itertools.islice(words, len(_CHOICES)))

    return [[_Noun(next(words), some(), some()) for _ in range(_NOUNS)] for _ in range(_TOPICS)]


def _sentence(nouns: list[_Noun], draw: Random) -> str:
    subject, other = (nouns[_below(draw, len(nouns))] for _ in range(2))
    return " ".join(_words(subject, other, draw))


def _words(subject: _Noun, other: _Noun, draw: Random) -> Iterator[str]:
    yield from ("the", _chosen(subject.adjectives, draw), subject.word)
    yield _chosen(subject.verbs, draw)
    yield from ("the", _chosen(other.adjectives, draw), other.word, ".")


def _chosen(words: tuple[str, ...], draw: Random) -> str:
    value = draw.random()
    return next(word for word, bound in zip(words, itertools.accumulate(_CHOICES), strict=True) if value < bound)


def _below(draw: Random, bound: int) -> int:
    """A number in [0, bound); of Random, Python promises that `random()` alone never changes."""
    return int(draw.random() * bound)


KIND = SourceKind(
    "generated",
    read,
    example="2000",
    default_pattern="2000",
    find=find,
    sentence_per_line=True,
    is_english=True,
)
