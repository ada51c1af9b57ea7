"""The members of the family by name."""

from __future__ import annotations

import difflib

from bertjax.model.families.bert import BERT
from bertjax.model.families.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT,)}


def family_of(name: str) -> Family:
    """The member of that name. Raises ValueError for another, with the nearest name."""
    if name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(FAMILIES)}"
        raise ValueError(f"model.family={name!r} is unknown; {hint}")
    return FAMILIES[name]
