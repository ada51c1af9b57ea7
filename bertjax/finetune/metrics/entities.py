"""Entities in tagged text, and their precision, recall and F1, like seqeval's default mode.

An entity continues while its type is the same, no tag begins a new one (B, S) and no tag has ended it (E, S). This
reads IOB1, IOB2 and IOBES (BIOES), and also tags that violate their scheme: `I-PER` after `O` begins an entity.

With tags O, B and I the figures equal CoNLL's `conlleval.pl` (Tjong Kim Sang and Buchholz, 2000), which does not
support S, and lets B continue an entity that E has ended. For tags that follow their scheme they equal seqeval's
`mode="strict"`, which drops incomplete entities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_OUTSIDE, _BEGINS, _ENDS = "O", "BS", "ES"
_KINDS = "BIES"


class Entity(NamedTuple):
    """Consecutive tokens [start, end) of one type."""

    type: str
    start: int
    end: int


@dataclass(frozen=True)
class EntityFigures:
    """Numbers of entities, and the figures derived from them."""

    predicted: int
    labelled: int
    right: int  # predicted with the right type and both ends

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


def is_entity_tag(tag: str) -> bool:
    """Check whether a tag is `O`, like `B-PER`, or for entities without types `B` alone."""
    kind, dash, type_ = tag.partition("-")
    return tag == _OUTSIDE or (kind in tuple(_KINDS) and bool(type_) == bool(dash))


def entities(tags: Sequence[str]) -> list[Entity]:
    """List the entities in a sentence's tags, in order; tags such as `B` have the type "".

    Raises ValueError for any other tag.
    """
    spans: list[Entity] = []
    before = _OUTSIDE
    for index, tag in enumerate(tags):
        if not is_entity_tag(tag):
            raise ValueError(f"tag {tag!r} of token {index + 1}: a tag is O, or one of {', '.join(_KINDS)} and -TYPE")
        if tag != _OUTSIDE:
            kind, _, type_ = tag.partition("-")
            continues = spans and spans[-1].end == index and spans[-1].type == type_
            if continues and kind not in _BEGINS and before[0] not in _ENDS:
                spans[-1] = Entity(type_, spans[-1].start, index + 1)
            else:
                spans.append(Entity(type_, index, index + 1))
        before = tag
    return spans


def entity_figures(predicted: Sequence[Sequence[str]], labels: Sequence[Sequence[str]]) -> EntityFigures:
    """Count entities over all sentences; both arguments have a tag for each token of the same sentences."""
    ours, theirs, right = 0, 0, 0
    for mine, gold in zip(predicted, labels, strict=True):
        predictions, answers = entities(mine), entities(gold)
        ours += len(predictions)
        theirs += len(answers)
        right += len({*predictions} & {*answers})
    return EntityFigures(ours, theirs, right)
