"""Divide a corpus into the documents of two splits: whether to split long texts, and which documents to hold out.

Both follow from the text alone. A corpus of many documents keeps them whole and holds out those whose draw is below
`data.held_out`. If that leaves a split without documents, those with the lowest draws are held out, as many as an
evaluation needs; if whole documents would be too large a share of the text for that, they are split first.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import nextafter
from typing import Any

from bertjax.config import DataConfig
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.corpus import Corpus, draws, with_draws
from bertjax.text.documents import Document
from bertjax.text.groups import Groups, groups_fingerprint, read_groups
from bertjax.text.screening import compares
from bertjax.text.sources.registry import KINDS, read_documents, require_documents

LEAST_DOCUMENTS = 2  # in each split; a random B needs another document
LARGEST_SHARE = 0.1  # of the text in whole held-out documents; beyond it, documents are split first
MOST_SHARE = 1 / 3  # of the text in held-out pieces; beyond it, there is too little text
MEASURED = 1 << 15  # characters to hold out, about 64 rows of 128 tokens
MEASURED_SHARE = 0.05  # of the text for that, at most

_SURVEYED = 512 << 20  # characters to read at most; a larger corpus is judged by its beginning
_PIECES = 50  # at least, of a small corpus, if its paragraphs allow
_SHORTEST, _LONGEST = 1_000, 1 << 16  # bounds, in characters, of the longest piece: some paragraphs, a long chapter


@dataclass(frozen=True)
class Division:
    """The rule that makes documents of a corpus and assigns them to the splits."""

    held_out: float  # a document is held out if its draw is below this
    longest: int = 0  # characters of a document at most; 0: documents stay whole
    share: float | None = None  # of the text that is held out, if not the requested share
    groups: str = ""  # `data.groups`: a group has one draw

    def inputs(self) -> dict[str, Any]:
        """The inputs that a store or a vocabulary depends on, as JSON."""
        return {
            "held_out": self.held_out,
            **({"longest_document": self.longest} if self.longest else {}),
            **({"groups": groups_fingerprint(self.groups)} if self.groups else {}),
        }

    def notes(self, written: float | None = None) -> list[str]:
        """Lines to print if the held-out share is not the requested one.

        `written` is the share of what is stored, if filters leave out a part of the text.
        """
        if self.share is None:
            return []
        share = self.share if written is None else written
        return [f"{share:.1%} of the text is held out: data.held_out leaves too few documents to measure with"]


@dataclass
class _Survey:
    """Sizes and draws of a corpus's documents, as far as they were read."""

    documents: list[tuple[float, int]] = dataclasses.field(default_factory=list)  # (draw, characters) of each
    characters: int = 0
    held: int = 0  # documents with a draw below the requested share
    held_characters: int = 0
    is_whole: bool = True  # whether all documents were read

    def add(self, draw: float, characters: int, held_out: float) -> None:
        self.documents.append((draw, characters))
        self.characters += characters
        self.held += draw < held_out
        self.held_characters += characters * (draw < held_out)

    def is_enough(self, characters: float) -> bool:
        """Whether both splits have documents, and the held-out one at least so many characters."""
        least = min(self.held, len(self.documents) - self.held)
        return least >= LEAST_DOCUMENTS and self.held_characters >= characters


def divide(corpus: Corpus, data: DataConfig) -> Division:
    """Choose a division before tokenizing, by reading as much of the corpus as needed.

    Raises ValueError for a source without text, for too little text for both splits, or like reading and `read_groups`.
    """
    survey = None
    if data.split_documents == "never" or (data.split_documents == "auto" and _may_be_enough(corpus)):
        survey = _survey(corpus, data, 0, 0)
        if survey.is_enough(0) or (not survey.is_whole and data.split_documents == "never"):
            return Division(data.held_out, groups=data.groups)
        # Dividing documents makes no group smaller.
        most = MOST_SHARE if data.split_documents == "never" or data.groups else LARGEST_SHARE
        if survey.is_whole and (adapted := _adapted(survey, data, most)):
            return adapted
    if data.split_documents != "never":
        longest = min(max(corpus.text_bytes // _PIECES, _SHORTEST), _LONGEST)
        survey = _survey(corpus, data, longest, MEASURED)
        # A given share that is enough of a small text is kept, so that several stores can have the same.
        is_given = data.held_out != DataConfig.held_out
        least = min(MEASURED, MEASURED_SHARE * survey.characters) if is_given else MEASURED
        if survey.is_enough(least):
            return Division(data.held_out, longest, groups=data.groups)
        if adapted := _adapted(survey, data, MOST_SHARE):
            return dataclasses.replace(adapted, longest=longest)
    survey = survey or _survey(corpus, data, 0, 0)
    if data.groups and survey.is_whole:
        _require_small_groups(survey, data)
    documents, train = len(survey.documents), len(survey.documents) - survey.held
    raise ValueError(
        f"data.held_out={data.held_out} leaves {survey.held} of {documents} documents for evaluation and {train} for "
        f"training; each needs {LEAST_DOCUMENTS}: give another share, or more text than the {survey.characters:,} "
        f"characters of {', '.join(data.sources)}"
    )


def _may_be_enough(corpus: Corpus) -> bool:
    """Whether whole documents may fill both splits; False only if their number is known without reading."""
    counted = all(KINDS[file.kind].file_is_document for files in corpus.files for file in files)
    return not counted or sum(map(len, corpus.files)) >= 2 * LEAST_DOCUMENTS


def _survey(corpus: Corpus, data: DataConfig, longest: int, characters: int) -> _Survey:
    """Read documents until there are enough for the requested share, or to the end.

    Documents of the same words count once if filters leave out copies.
    """
    survey = _Survey()
    seen: set[float] | None = set() if compares(data.filters) else None
    groups = read_groups(data.groups) if data.groups else None
    for source, files in zip(corpus.sources, corpus.files, strict=True):
        counts = ReadCounts()
        for file in files:
            for draw, size in _sizes(read_documents(file, counts, longest), groups, seen):
                survey.add(draw, size, data.held_out)
                if survey.is_enough(characters) or survey.characters > _SURVEYED:
                    survey.is_whole = False
                    return survey
        require_documents(source, counts)
    return survey


def _sizes(
    documents: Iterator[Document], groups: Groups | None, seen: set[float] | None = None
) -> Iterator[tuple[float, int]]:
    """Yield (draw, characters) of each document; its parts count together.

    With `seen`, the draws of the words of earlier documents, copies of those are left out.
    """
    held: tuple[float, int] | None = None
    is_copy = False
    for document, (draw, _) in with_draws(documents, groups):
        if document.is_continuation:
            if not is_copy:
                assert held is not None
                held = (draw, held[1] + len(document.text))
            continue
        if seen is not None:
            words = draw if groups is None else draws(document.text)[0]
            is_copy = words in seen
            seen.add(words)
            if is_copy:
                continue
        if held:
            yield held
        held = (draw, len(document.text))
    if held:
        yield held


def _adapted(survey: _Survey, data: DataConfig, most: float) -> Division | None:
    """Hold out as few documents as give both the requested share and enough to measure; groups stay whole.

    Returns None if they exceed `most` of the text and 1.5 times the request, or if too few are left for training.
    """
    most = max(most, 1.5 * data.held_out)
    if not 0 < data.held_out < 1:
        return None
    target = max(data.held_out * survey.characters, min(MEASURED, MEASURED_SHARE * survey.characters))
    held = 0
    ordered = sorted(survey.documents)
    for count, (draw, characters) in enumerate(ordered, 1):
        held += characters
        # All documents with a draw, which are a group or copies, are in the same split.
        is_last = count == len(ordered) or ordered[count][0] != draw
        if count >= LEAST_DOCUMENTS and held >= target and is_last:
            if len(ordered) - count < LEAST_DOCUMENTS or held > most * survey.characters:
                return None
            return Division(nextafter(draw, 1.0), share=held / survey.characters, groups=data.groups)
    return None


def _require_small_groups(survey: _Survey, data: DataConfig) -> None:
    """Raise ValueError if a group is too large a share of the text to be held out, or to leave the rest for it."""
    sizes: Counter[float] = Counter()
    for draw, characters in survey.documents:
        sizes[draw] += characters
    largest = max(sizes.values(), default=0) / max(survey.characters, 1)
    if largest > MOST_SHARE:
        raise ValueError(
            f"data.groups={data.groups!r}: one group is {largest:.0%} of the text, and a group is in one split as a "
            f"whole; at most {MOST_SHARE:.0%} are held out: give smaller groups, or more text of others"
        )
