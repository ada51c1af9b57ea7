"""Entities in tagged text, and their precision, recall and F1, as seqeval's default mode computes them.

An entity continues as long as its type is the same, no tag begins a new one (B, S) and no tag has ended it (E, S). So
IOB1, IOB2 and IOBES (BIOES) are all read, and so are tags that break their scheme: `I-PER` after `O` begins an entity.

With tags O, B and I these are the figures of CoNLL's `conlleval.pl` (Tjong Kim Sang and Buchholz, 2000). With E and S
they are not: that script knows no S, and lets B continue an entity that E has ended. They are those of seqeval's
`mode="strict"` for tags that keep to their scheme; for others the strict mode drops what is not a whole entity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_OUTSIDE, _BEGINS, _ENDS = "O", "BS", "ES"
_KINDS = "BIES"


class Entity(NamedTuple):
    """Consecutive tokens of one type: the index of the first, and of the one after the last."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class EntityFigures:
    """Numbers of entities, of one type or of all."""

    predicted: int
    labelled: int
    right: int  # predicted with the type, the first and the last token of a labelled one

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are right; 0 if there are none."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the labelled entities that are predicted; 0 if there are none."""
        return self.right / self.labelled if self.labelled else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 if nothing is right."""
        both = self.predicted + self.labelled
        return 2 * self.right / both if both else 0.0


def is_of_entities(tag: str) -> bool:
    """Whether a tag is `O`, such as `B-PER`, or `B` alone, where entities have no types."""
    kind, dash, type_ = tag.partition("-")
    return tag == _OUTSIDE or (kind in tuple(_KINDS) and bool(type_) == bool(dash))


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of a sentence's tags, `O` or such as `B-PER`, in order; those of tags such as `B` have the type "".

    Raises ValueError for a tag that is neither.
    """
    found: list[Entity] = []
    before = _OUTSIDE
    for index, tag in enumerate(tags):
        if not is_of_entities(tag):
            raise ValueError(f"tag {tag!r} of token {index + 1}: a tag is O, or one of {', '.join(_KINDS)} and -TYPE")
        if tag != _OUTSIDE:
            kind, _, type_ = tag.partition("-")
            continues = found and found[-1].end == index and found[-1].type == type_
            if continues and kind not in _BEGINS and before[0] not in _ENDS:
                found[-1] = Entity(type_, found[-1].start, index + 1)
            else:
                found.append(Entity(type_, index, index + 1))
        before = tag
    return found


def entity_figures(predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> dict[str, EntityFigures]:
    """Figures over all sentences: under "" of all types together, and of each type under its name.

    Raises ValueError if the two sides differ in the number of sentences, or of a sentence's tokens.
    """
    if len(predicted) != len(labels):
        raise ValueError(f"{len(predicted)} tagged sentences and {len(labels)} labelled ones; give the same")
    ours: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for number, (mine, gold) in enumerate(zip(predicted, labels, strict=True), 1):
        if len(mine) != len(gold):
            raise ValueError(f"sentence {number}: {len(mine)} tags and {len(gold)} labels; give one for each token")
        found, wanted = entities(mine), entities(gold)
        ours.update(entity.type for entity in found)
        theirs.update(entity.type for entity in wanted)
        right.update(entity.type for entity in {*found} & {*wanted})
    types = sorted({*ours, *theirs} - {""})  # entities without a type are among all, under ""
    of_type = {name: EntityFigures(ours[name], theirs[name], right[name]) for name in types}
    return {"": EntityFigures(ours.total(), theirs.total(), right.total())} | of_type
