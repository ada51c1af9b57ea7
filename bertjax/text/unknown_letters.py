"""Letters of sequences that a vocabulary lacks: counted, named by record, and refused or replaced by [UNK]."""

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
    """The unknown letters of some records."""

    letters: Counter[str] = field(default_factory=Counter)
    records: int = 0  # that have any; a record read in parts counts once for each such part
    examples: list[str] = field(default_factory=list)  # the first of them

    def add(
        self,
        documents: Sequence[Document],
        groups: Sequence[Sequence[str]],
        ids: np.ndarray,
        lengths: np.ndarray,
        tokenizer: Tokenizer,
    ) -> None:
        """Count those of documents, given their sentences, and the ids and the lengths of these."""
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
        """As JSON; empty if there are none."""
        content = {"letters": dict(sorted(self.letters.items())), "records": self.records, "examples": self.examples}
        return {"unknown_letters": content} if self.records else {}

    def described(self) -> str:
        """A line with the letters, their counts and the first records."""
        common = [f"{letter!r} {count:,}" for letter, count in self.letters.most_common(_NAMED_LETTERS)]
        more = ", ..." if len(self.letters) > _NAMED_LETTERS else ""
        return (
            f"{self.letters.total():,} letters that the vocabulary lacks, in {self.records:,} records "
            f"({', '.join(common)}{more}): {'; '.join(self.examples)}"
        )


def merge_unknown_letters(abouts: Iterable[Mapping[str, Any]]) -> UnknownLetters:
    """Those of records of units, or of provenances, as JSON."""
    merged = UnknownLetters()
    for about in abouts:
        if listed := about.get("unknown_letters"):
            merged.letters.update(listed["letters"])
            merged.records += listed["records"]
            merged.examples = [*merged.examples, *listed["examples"]][:_NAMED_RECORDS]
    return merged


def require_known_letters(unknown: UnknownLetters, data: DataConfig) -> None:
    """Raise ValueError for unknown letters, unless they are replaced or the vocabulary was found in the text."""
    if not unknown.records or data.unknown_letters == "replace":
        return
    kind, argument = (None, "") if data.vocab else parse_kind(data.tokenizer)
    if kind is not None and kind.given(argument) is None:
        return
    raise ValueError(
        f"data.unknown_letters='stop': {unknown.described()}; correct these records, choose a vocabulary that has the "
        "letters, or replace them by [UNK]: --data.unknown-letters replace"
    )
