"""The `generated` source: text made by rules, the same in every installation, for comparing machines.

Each document has a topic with its own nouns. A noun has a few adjectives and verbs, some more frequent than others, so
that a masked word can often be guessed from its sentence, and a second sentence from the topic of the first.
"""

from __future__ import annotations

import itertools
import re
from random import Random
from typing import NamedTuple

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.source import Paragraphs, Source, SourceFile, SourceKind

_TOPICS, _NOUNS = 6, 4  # nouns of a topic
_SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "pa", "ri", "so", "tu", "ve", "za")
_CHOICES = (0.5, 0.3, 0.2)  # probabilities of a noun's adjectives, and of its verbs
_LEAST, _MOST = 4, 11  # sentences per document
_UNIT_DOCUMENTS = 10_000  # about 4 MB
_BYTES = 400  # per document, about


class _Noun(NamedTuple):
    word: str
    adjectives: tuple[str, ...]
    verbs: tuple[str, ...]


def find(source: Source) -> list[SourceFile]:
    """Split the number of documents into units of work. Raises ValueError unless the pattern is a number."""
    return numbered_units(source, __file__, _UNIT_DOCUMENTS, _BYTES)


def numbered_units(source: Source, rules: str, per_unit: int, size: int) -> list[SourceFile]:
    """Split a number of documents of about `size` bytes into units of `per_unit`.

    `rules` is the file of the module that generates them; its digest identifies the text. Raises ValueError unless the
    pattern is a number.
    """
    if not re.fullmatch(r"[1-9]\d{0,8}", source.pattern):
        raise ValueError(f"source {source}: {source.pattern!r} is not a number of documents; write {source.kind}:2000")
    count = int(source.pattern)
    ranges = ((start, min(start + per_unit, count)) for start in range(0, count, per_unit))
    return [SourceFile(source.kind, f"{start}-{end}", (rules,), listed=(end - start) * size) for start, end in ranges]


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Generate the sentences of a unit's documents. Document k is a function of k alone."""
    topics = _topics()
    for number in range(*map(int, file.path.split("-"))):
        draw = Random(f"document {number}")
        nouns = topics[drawn_below(draw, _TOPICS)]
        for _ in range(_LEAST + drawn_below(draw, _MOST - _LEAST + 1)):
            yield _sentence(nouns, draw)
        yield None


def _topics() -> list[list[_Noun]]:
    """Draw the nouns of each topic; no word is used twice."""
    draw = Random("words")
    every = map("".join, itertools.product(_SYLLABLES, repeat=3))
    words = iter(sorted(every, key=lambda _: draw.random()))

    def some() -> tuple[str, ...]:
        return tuple(itertools.islice(words, len(_CHOICES)))

    return [[_Noun(next(words), some(), some()) for _ in range(_NOUNS)] for _ in range(_TOPICS)]


def _sentence(nouns: list[_Noun], draw: Random) -> str:
    # The order of the draws is part of the text.
    subject, other = (nouns[drawn_below(draw, len(nouns))] for _ in range(2))
    first, verb, second = (_chosen(words, draw) for words in (subject.adjectives, subject.verbs, other.adjectives))
    return f"the {first} {subject.word} {verb} the {second} {other.word} ."


def _chosen(words: tuple[str, ...], draw: Random) -> str:
    value = draw.random()
    return next(word for word, bound in zip(words, itertools.accumulate(_CHOICES), strict=True) if value < bound)


def drawn_below(draw: Random, bound: int) -> int:
    """Draw a number in [0, bound). Of Python's generators, only `random()` is promised never to change."""
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
