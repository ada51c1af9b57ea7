"""Positive pairs from plain text: the rules that make texts with similar meanings from documents."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.data.tables import Notify
from bertjax.input.randomness import derive_key, hash64, uniform
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sentences import split_sentences
from bertjax.text.sources.registry import find_files, parse_sources, read_documents, require_documents, require_text

MOST_PAIRS = 1_000_000  # held in memory; SimCSE used as many

_LEAST_WORDS = 4  # of a sentence; headings and lone names have too little content
_PASSAGE = 400  # characters: two to four sentences
_LONGEST_TITLE = 150  # characters
_SENTENCE_ENDS = (".", "。", "।", "።", "۔", ",", ";", ":")  # a title may be a question
_DELETED = 0.5  # share of the words
_DELETED_BY_NOISE = 0.6  # the best share of figure 3 of the paper on TSDAE
_MOST_REPEATED = 0.32  # share of the words, as in the paper on ESimCSE
_CROPPED_WORDS = 128  # of a document, per pair
_LEAST_CROP, _MOST_CROP = 0.1, 0.5  # length of a crop as a share of those words


@dataclass(frozen=True)
class Positive:
    """A rule that makes pairs of similar meaning from plain text. To add one, list an object below."""

    name: str  # in `task.positives`
    pairs: Callable[[Sequence[str], int], Iterator[tuple[str, str]]]
    """Yield the pairs of a document, from its paragraphs and the document's number, which seeds the draws."""
    needs_dropout: bool = False  # both texts are equal, and only dropout makes their vectors differ


def _sentences(paragraphs: Sequence[str]) -> Iterator[str]:
    """Yield sentences of four words or more; non-ASCII ones, maybe without spaces, need nine characters."""
    for paragraph in paragraphs:
        for sentence in split_sentences(paragraph):
            if len(sentence.split()) >= _LEAST_WORDS or (not sentence.isascii() and len(sentence) > 2 * _LEAST_WORDS):
                yield sentence


def split_words(sentence: str) -> tuple[list[str], str]:
    """Split a sentence into words, or into characters if it has no spaces; returns (parts, separator)."""
    words = sentence.split()
    return (words, " ") if len(words) > 1 else (list(sentence), "")


def _passages(paragraphs: Sequence[str]) -> list[str]:
    """Split paragraphs into passages of whole sentences, about 400 characters each."""
    passages: list[str] = []
    for paragraph in paragraphs:
        sentences: list[str] = []
        for sentence in split_sentences(paragraph):
            sentences.append(sentence)
            if sum(map(len, sentences)) >= _PASSAGE:
                passages.append(" ".join(sentences))
                sentences = []
        if sentences:
            passages.append(" ".join(sentences))
    return passages


def _dropout(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield every sentence twice: under two masks of dropout (unsupervised SimCSE, Gao et al. 2021)."""
    for sentence in _sentences(paragraphs):
        yield sentence, sentence


def _repetition(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (a sentence with up to a share of its words repeated in place, the sentence): ESimCSE (Wu et al. 2022).

    The texts of a pair differ in length, so that the model cannot tell positives by equal lengths.
    """
    for place, sentence in enumerate(_sentences(paragraphs)):
        words, space = split_words(sentence)
        draws = uniform(hash64(derive_key("repetition", number, place), np.arange(1 + len(words))))
        most = max(2, int(_MOST_REPEATED * len(words)))
        repeated = set(np.argsort(draws[1:], kind="stable")[: int(draws[0] * (most + 1))].tolist())
        twice = [word for at, word in enumerate(words) for word in [word] * (1 + (at in repeated))]
        yield space.join(twice), sentence


def _deletion(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield each sentence twice, each time without a random half of its words, like TSDAE's noise (Wang et al. 2021).

    Copies with similar vectors cannot depend on a single word, nor on words that most sentences share. The rule works
    without dropout, which a small model may never have been trained with.
    """
    for place, sentence in enumerate(_sentences(paragraphs)):
        first, second = _delete_words(sentence, 2, _DELETED, "deletion", number, place)
        yield first, second


def _delete_words(sentence: str, copies: int, share: float, *key: str | int) -> list[str]:
    """Copy a sentence, each time without about `share` of its words, drawn by `key`; at least one word stays."""
    words, space = split_words(sentence)
    draws = uniform(hash64(derive_key(*key), np.arange(copies * len(words)))).reshape(copies, -1)
    return [
        space.join(word for word, is_kept in zip(words, row >= min(share, row.max()), strict=True) if is_kept)
        for row in draws
    ]


def _noise(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (a sentence without most of its words, the sentence): TSDAE (Wang, Reimers and Gurevych 2021)."""
    for place, sentence in enumerate(_sentences(paragraphs)):
        (damaged,) = _delete_words(sentence, 1, _DELETED_BY_NOISE, "noise", number, place)
        yield damaged, sentence


def _crops(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield two random spans, which may overlap, of every 128 words (Contriever, Izacard et al. 2022).

    A last part of fewer than 32 words is left out.
    """
    text = " ".join(paragraphs)
    spaced = len(text.split()) > len(text) / 20
    words = text.split() if spaced else list(text)
    for place, start in enumerate(range(0, len(words), _CROPPED_WORDS)):
        part = words[start : start + _CROPPED_WORDS]
        if len(part) >= _CROPPED_WORDS // 4:
            size, at, other_size, other_at = uniform(hash64(derive_key("crops", number, place), np.arange(4))).tolist()
            first, second = _span(part, size, at), _span(part, other_size, other_at)
            yield (" " if spaced else "").join(first), (" " if spaced else "").join(second)


def _span(words: Sequence[str], size: float, at: float) -> Sequence[str]:
    count = max(1, round(len(words) * (_LEAST_CROP + (_MOST_CROP - _LEAST_CROP) * size)))
    start = int(at * (len(words) - count + 1))
    return words[start : start + count]


def _neighbors(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield each passage with the next one."""
    yield from itertools.pairwise(_passages(paragraphs))


def _title(paragraphs: Sequence[str], number: int) -> Iterator[tuple[str, str]]:
    """Yield (the first paragraph, a passage of the others) if the first is as short as a title and not a sentence."""
    title, *body = paragraphs
    if title.strip() and len(title) <= _LONGEST_TITLE and not title.endswith(_SENTENCE_ENDS):
        for passage in _passages(body):
            yield title, passage


_ALL = (
    Positive("dropout", _dropout, needs_dropout=True),
    Positive("repetition", _repetition),
    Positive("deletion", _deletion),
    Positive("crops", _crops),
    Positive("neighbors", _neighbors),
    Positive("title", _title),
    Positive("noise", _noise),
)
POSITIVES = Registry("positives", {rule.name: rule for rule in _ALL}, Positive)


def get_positives(names: Sequence[str]) -> list[Positive]:
    """Look up rules by name. Raises ValueError for an unknown name, with the nearest ones."""
    for name in names:
        if name not in POSITIVES:
            hint = suggestion(name, POSITIVES)
            raise ValueError(f"task.positives={name!r} (--positives): no such rule; {hint}")
    return [POSITIVES[name] for name in names]


def read_pairs(sources: Sequence[str], positives: Sequence[str], notify: Notify) -> list[TextExample]:
    """Make pairs from the documents of sources, such as `text:books/*.txt`, in order.

    A fixed random sample of `MOST_PAIRS` is kept if there are more. Raises ValueError for a source without text, for
    damaged files, and if the rules `positives` make fewer than two pairs.
    """
    rules = get_positives(positives)
    parsed = parse_sources(sources)
    require_text(parsed)
    chosen: list[tuple[int, TextExample]] = []
    draw, seen, number = random.Random(0), 0, 0
    for source in parsed:
        counts = ReadCounts()
        for file in find_files(source).files:
            for document in read_documents(file, counts):
                paragraphs = document.text.split("\n")
                number += 1
                for rule in rules:
                    for pair in rule.pairs(paragraphs, number):
                        example = TextExample(f"{file.path}: document {number}", str(seen), pair, None)
                        if len(chosen) < MOST_PAIRS:
                            chosen.append((seen, example))
                        elif (place := draw.randrange(seen + 1)) < MOST_PAIRS:
                            chosen[place] = seen, example
                        seen += 1
        require_documents(source, counts)
        if counts.replaced_characters:
            notify(f"{source}: {counts.replaced_characters:,} characters are not UTF-8; each is read as U+FFFD")
    if seen < 2:
        raise ValueError(
            f"--from-text {' '.join(sources)}: {number:,} documents give {seen} pairs by {', '.join(positives)}; name "
            "more text, or another --positives"
        )
    if seen > MOST_PAIRS:
        notify(f"{seen:,} pairs; {MOST_PAIRS:,} of them are drawn")
    return [example for _, example in sorted(chosen, key=lambda one: one[0])]
