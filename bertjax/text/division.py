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

LEAST_DOCUMENTS = 2  # in each split; a random segment B needs another document
LARGEST_SHARE = 0.1  # of the text in whole held-out documents; beyond it, documents are split first
MOST_SHARE = 1 / 3  # of the text in held-out pieces; beyond it, there is too little text
MEASURED = 1 << 15  # characters to hold out, about 64 rows of 128 tokens
MEASURED_SHARE = 0.05  # largest share of the text to hold out for that

_SURVEYED = 512 << 20  # characters to read at most; a larger corpus is judged by its beginning
_PIECES = 50  # least number of pieces of a small corpus, if its paragraphs allow it
_SHORTEST, _LONGEST = 1_000, 1 << 16  # bounds, in characters, of the longest piece: some paragraphs, a long chapter


@dataclass(frozen=True)
class Division:
    """The rule that makes documents of a corpus and assigns them to the splits."""

    held_out: float  # a document is held out if its draw is below this
    longest: int = 0  # most characters in a document; 0: documents stay whole
    share: float | None = None  # held-out share of the text, if it is not the requested one
    groups: str = ""  # `data.groups`; all records of a group share one draw

    def inputs(self) -> dict[str, Any]:
        """The inputs that a store or a vocabulary depends on, as JSON."""
        return {
            "held_out": self.held_out,
            **({"longest_document": self.longest} if self.longest else {}),
            **({"groups": groups_fingerprint(self.groups)} if self.groups else {}),
        }

    def notes(self, written: float | None = None) -> list[str]:
        """Lines to print if the held-out share is not the requested one.

        `written` is the share of the stored tokens, if filters leave out a part of the text.
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
        """Whether both splits have enough documents, and the held-out split at least `characters`."""
        least = min(self.held, len(self.documents) - self.held)
        return least >= LEAST_DOCUMENTS and self.held_characters >= characters


def divide(corpus: Corpus, data: DataConfig) -> Division:
    """Choose a division before tokenizing, by reading as much of the corpus as needed.

    Raises ValueError for a source without text, for too little text for both splits, and where reading or `read_groups`
    does.
    """
    survey = None
    if data.split_documents == "never" or (data.split_documents == "auto" and _may_be_enough(corpus)):
        survey = _survey(corpus, data, 0, 0)
        if survey.is_enough(0) or (not survey.is_whole and data.split_documents == "never"):
            return Division(data.held_out, groups=data.groups)
        # Splitting documents does not make groups smaller.
        most = MOST_SHARE if data.split_documents == "never" or data.groups else LARGEST_SHARE
        if survey.is_whole and (division := _adapt(survey, data, most)):
            return division
    if data.split_documents != "never":
        longest = min(max(corpus.text_bytes // _PIECES, _SHORTEST), _LONGEST)
        survey = _survey(corpus, data, longest, MEASURED)
        # Keep a share that the user set, if it suffices for a small text, so that several stores can have the same one.
        is_explicit = data.held_out != DataConfig.held_out
        least = min(MEASURED, MEASURED_SHARE * survey.characters) if is_explicit else MEASURED
        if survey.is_enough(least):
            return Division(data.held_out, longest, groups=data.groups)
        if division := _adapt(survey, data, MOST_SHARE):
            return dataclasses.replace(division, longest=longest)
    survey = survey or _survey(corpus, data, 0, 0)
    if data.groups and survey.is_whole:
        _require_small_groups(survey, data)
    documents, train = len(survey.documents), len(survey.documents) - survey.held
    raise ValueError(
        f"data.held_out={data.held_out} leaves {survey.held} of {documents} documents for evaluation and {train} for "
        f"training; each needs {LEAST_DOCUMENTS}: set another share, or add text to the {survey.characters:,} "
        f"characters of {', '.join(data.sources)}"
    )


def _may_be_enough(corpus: Corpus) -> bool:
    """Whether whole documents may fill both splits; False only if the number of files shows that they cannot."""
    counted = all(KINDS[file.kind].file_is_document for files in corpus.files for file in files)
    return not counted or sum(map(len, corpus.files)) >= 2 * LEAST_DOCUMENTS


def _survey(corpus: Corpus, data: DataConfig, longest: int, characters: int) -> _Survey:
    """Read documents until there are enough for the requested share, or to the end.

    Documents with the same words count once if filters leave out copies.
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

    `seen`, if given, collects the draws of the documents' words; documents that repeat one are left out.
    """
    pending: tuple[float, int] | None = None
    is_copy = False
    for document, (draw, _) in with_draws(documents, groups):
        if document.is_continuation:
            if not is_copy:
                assert pending is not None
                pending = (draw, pending[1] + len(document.text))
            continue
        if seen is not None:
            words = draw if groups is None else draws(document.text)[0]
            is_copy = words in seen
            seen.add(words)
            if is_copy:
                continue
        if pending:
            yield pending
        pending = (draw, len(document.text))
    if pending:
        yield pending


def _adapt(survey: _Survey, data: DataConfig, most: float) -> Division | None:
    """Hold out the fewest documents that give both the requested share and enough to measure; groups stay whole.

    Returns None if they exceed `most` of the text and 1.5 times the request, or if too few are left for training.
    """
    most = max(most, 1.5 * data.held_out)
    if not 0 < data.held_out < 1:
        return None
    target = max(data.held_out * survey.characters, min(MEASURED, MEASURED_SHARE * survey.characters))
    held_characters = 0
    ordered = sorted(survey.documents)
    for count, (draw, characters) in enumerate(ordered, 1):
        held_characters += characters
        # Documents with equal draws, which are a group or copies, stay in one split.
        is_last = count == len(ordered) or ordered[count][0] != draw
        if count >= LEAST_DOCUMENTS and held_characters >= target and is_last:
            if len(ordered) - count < LEAST_DOCUMENTS or held_characters > most * survey.characters:
                return None
            return Division(nextafter(draw, 1.0), share=held_characters / survey.characters, groups=data.groups)
    return None


def _require_small_groups(survey: _Survey, data: DataConfig) -> None:
    """Raise ValueError if one group is too large a share of the text to divide it."""
    sizes: Counter[float] = Counter()
    for draw, characters in survey.documents:
        sizes[draw] += characters
    largest = max(sizes.values(), default=0) / max(survey.characters, 1)
    if largest > MOST_SHARE:
        raise ValueError(
            f"data.groups={data.groups!r}: one group is {largest:.0%} of the text, but groups are not divided and at "
            f"most {MOST_SHARE:.0%} of the text is held out; use smaller groups, or add text of other groups"
        )
