"""The rules that make pairs of like meaning from plain text, one file each, and their registry."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.finetune.positives.crops import CROPS
from bertjax.finetune.positives.deletion import DELETION
from bertjax.finetune.positives.dropout import DROPOUT
from bertjax.finetune.positives.neighbors import NEIGHBORS
from bertjax.finetune.positives.noise import NOISE
from bertjax.finetune.positives.positive import Positive
from bertjax.finetune.positives.repetition import REPETITION
from bertjax.finetune.positives.title import TITLE

_ALL = (DROPOUT, REPETITION, DELETION, CROPS, NEIGHBORS, TITLE, NOISE)
POSITIVES = Registry("positives", {rule.name: rule for rule in _ALL}, Positive)


def get_positives(names: Sequence[str]) -> list[Positive]:
    """The rules of these names. Raises ValueError for an unknown one, with the nearest names."""
    for name in names:
        if name not in POSITIVES:
            hint = suggestion(name, POSITIVES)
            raise ValueError(f"task.positives={name!r} (--positives): no such rule; {hint}")
    return [POSITIVES[name] for name in names]
