"""Count the letters of sequences that a vocabulary lacks, name their records, and refuse them or allow [UNK]."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertjax.config import DataConfig
from bertjax.text.documents import Document
from bertjax.text.spans import get_record
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.tokenization.training import parse_kind

_NAMED_RECORDS = 5
_NAMED_LETTERS = 20
_SHOWN = 12  # letters of a record without a name


@dataclass
class UnknownLetters:
    """The letters of records that the vocabulary lacks."""

    letters: Counter[str] = field(default_factory=Counter)
    records: int = 0  # records with unknown letters; a record read in parts counts once for each such part
    examples: list[str] = field(default_factory=list)  # phrases on the first such records

    def add(
        self,
        documents: Sequence[Document],
        groups: Sequence[Sequence[str]],
        ids: np.ndarray,
        lengths: np.ndarray,
        tokenizer: Tokenizer,
    ) -> None:
        """Count the unknown letters of documents.

        groups: the sentences of each document. ids, lengths: the tokens of all sentences, and their number in each.
        """
        is_unknown = ids == tokenizer.unk_id
        if not is_unknown.any():
            return
        ends = np.cumsum(lengths)
        number = 0
        for document, sentences in zip(documents, groups, strict=True):
            first = ""
            for sentence in sentences:
                places = np.flatnonzero(is_unknown[ends[number] - lengths[number] : ends[number]])
                number += 1
                if len(places):
                    spans = tokenizer.offsets(sentence)[places].tolist()
                    self.letters.update(sentence[a:b] for a, b in spans)
                    a, b = spans[0]
                    first = first or f"{sentence[a:b]!r} at letter {a + 1:,}"
            if first:
                self.records += 1
                name = get_record(document.text).name or f"{document.text[:_SHOWN]}..."
                self.examples += [f"record {name} has {first}"][: _NAMED_RECORDS - len(self.examples)]

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON; empty if there are no unknown letters."""
        content = {"letters": dict(sorted(self.letters.items())), "records": self.records, "examples": self.examples}
        return {"unknown_letters": content} if self.records else {}

    def describe(self) -> str:
        """Describe the letters, their counts and the first records in a line."""
        common = [f"{letter!r} {count:,}" for letter, count in self.letters.most_common(_NAMED_LETTERS)]
        more = ", ..." if len(self.letters) > _NAMED_LETTERS else ""
        return (
            f"{self.letters.total():,} letters that the vocabulary lacks, in {self.records:,} records "
            f"({', '.join(common)}{more}): {'; '.join(self.examples)}"
        )


def merge_unknown_letters(abouts: Iterable[Mapping[str, Any]]) -> UnknownLetters:
    """Merge the unknown letters in the records of units, or in provenances."""
    merged = UnknownLetters()
    for about in abouts:
        if listed := about.get("unknown_letters"):
            merged.letters.update(listed["letters"])
            merged.records += listed["records"]
            merged.examples = [*merged.examples, *listed["examples"]][:_NAMED_RECORDS]
    return merged


def require_known_letters(unknown: UnknownLetters, data: DataConfig) -> None:
    """Raise ValueError for unknown letters, unless they are replaced or the vocabulary was learned from the text."""
    if not unknown.records or data.unknown_letters == "replace":
        return
    kind, argument = (None, "") if data.vocab else parse_kind(data.tokenizer)
    if kind is not None and kind.build(argument) is None:
        return
    raise ValueError(
        f"data.unknown_letters='stop': {unknown.describe()}; correct these records, choose a vocabulary that has the "
        "letters, or replace them by [UNK]: --data.unknown-letters replace"
    )
